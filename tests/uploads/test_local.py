"""Upload sessions on one machine end in order: what is under way first, the store last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from agent_sandbox.uploads.local import local_uploads
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.sqlite import SqliteStore


async def test_the_store_is_closed_after_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    ending = anyio.Event()
    drained, close = UploadService.drained, SqliteStore.close

    async def asked(service: UploadService) -> None:
        ending.set()
        await drained(service, 30)

    async def closed(store: SqliteStore) -> None:
        said.append("closed")
        ending.set()
        await close(store)

    async def work(service: UploadService, task_status: Any) -> None:
        with service.under_way():
            task_status.started()
            await ending.wait()
            said.append("written down")

    monkeypatch.setattr(UploadService, "drained", asked)
    monkeypatch.setattr(SqliteStore, "close", closed)
    async with (
        anyio.create_task_group() as group,
        local_uploads("http://127.0.0.1:1", tmp_path / "uploads") as service,
    ):
        await group.start(lambda task_status: work(service, task_status))
    assert said == ["written down", "closed"]


async def test_what_does_not_end_is_waited_for_in_bounds(tmp_path: Path) -> None:
    async with local_uploads("http://127.0.0.1:1", tmp_path / "uploads") as service:
        with service.under_way(), anyio.fail_after(30):
            await service.drained(0.01)
