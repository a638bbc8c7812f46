"""An upload server in a process of its own for `bench_uploads.py`: one JSON line in, a port out."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette

from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.http import upload_routes, uvicorn_settings
from agent_sandbox.uploads.models import UploadsConfig
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.sqlite import SqliteStore


async def main(job: dict[str, Any]) -> None:
    """Serve the routes over SQLite and local blobs until the process is ended."""
    config = UploadsConfig(
        "http://127.0.0.1", bytes.fromhex(job["server_key"]), **job.get("settings", {})
    )
    store = SqliteStore(job["store"])
    await store.migrate()
    service = UploadService(config, store, LocalBlobs(job["blobs"]), hashed=job["hashed"])
    app = Starlette(routes=upload_routes(service))
    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, **uvicorn_settings(config)))
    await server.serve([listener])


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
