"""Upload sessions on one machine, ready to use: one directory, and everything that must run."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio

from agent_sandbox.uploads.audit import Observer
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.models import Charge, UploadsConfig
from agent_sandbox.uploads.secrets import load_server_key
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.sqlite import SqliteStore


@asynccontextmanager
async def local_uploads(
    public_url: str,
    directory: str | os.PathLike[str],
    *,
    charge: Charge | None = None,
    observer: Observer | None = None,
    **settings: Any,
) -> AsyncIterator[UploadService]:
    """Run a service over SQLite and files in one directory, with its recovery and its sweeper.

    For replicas compose `UploadService`, `PostgresStore` and `S3Blobs` yourself.

    Args:
        public_url: Where clients reach `upload_routes`, without a trailing slash.
        directory: Made with mode 0700: database, files and server key.
        charge: Your charge hook; runs only at use.
        observer: Told of every change of a session.
        settings: Further fields of `UploadsConfig`.

    Raises:
        ConfigError: E6000, the settings contradict each other or others can read the key.
        OSError: The directory cannot be used.
    """
    root = _made(directory)
    config = UploadsConfig(public_url, load_server_key(root / "server.key"), **settings)
    store = SqliteStore(root / "uploads.sqlite")
    try:
        await store.migrate()
        blobs = LocalBlobs(root / "blobs")
        service = UploadService(config, store, blobs, charge=charge, observer=observer)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(service.run_upkeep)
                yield service
                tasks.cancel_scope.cancel()
        finally:
            await service.drained()
    finally:
        await store.close()


def _made(directory: str | os.PathLike[str]) -> Path:
    root = Path(directory)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    return root
