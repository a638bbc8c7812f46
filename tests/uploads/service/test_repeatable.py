"""A use that is one function runs again after an unknown outcome, and never after a result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.upload_parts import ME, chunked, config

from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.models import StoredUpload
from agent_sandbox.uploads.repeatable import Repeatable
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.sqlite import SqliteStore


async def test_a_repeatable_use_runs_until_it_has_a_result(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    service = UploadService(config(), store, LocalBlobs(tmp_path / "blobs"))
    session, _ = await service.create(ME, "a", 5)
    await service.receive(await service.claim(session), chunked(b"hello"))
    seen: list[tuple[str, bytes]] = []

    async def use(upload: StoredUpload, data: AsyncIterator[bytes]) -> dict[str, int]:
        seen.append((upload.filename, b"".join([chunk async for chunk in data])))
        if len(seen) == 1:
            raise RuntimeError("nobody knows what it did")
        return {"runs": len(seen)}

    with pytest.raises(RuntimeError):
        await service.place(ME, session.upload_id, Repeatable(use))
    for replayed in (False, True):
        placed = await service.place(ME, session.upload_id, Repeatable(use))
        assert (dict(placed.result), placed.replayed) == ({"runs": 2}, replayed)
    assert seen == [("a", b"hello")] * 2
    await store.close()
