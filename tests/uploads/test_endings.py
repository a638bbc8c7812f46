"""Cancellation of both kinds meets work that must not be cut short."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.upload_parts import ME, chunked, config

from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store.sqlite import SqliteStore


async def test_a_result_and_an_error_come_through() -> None:
    async def fails() -> None:
        raise KeyError

    assert await to_its_end(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(KeyError):
        await to_its_end(fails())


@pytest.mark.parametrize("native", [False, True])
async def test_a_cancellation_waits_for_the_end(native: bool) -> None:
    begun, leave = anyio.Event(), anyio.Event()
    steps: list[str] = []
    scope = anyio.CancelScope()

    async def work() -> None:
        begun.set()
        await leave.wait()
        steps.append("worked")

    async def caller() -> None:
        with scope:
            try:
                await to_its_end(work())
                await anyio.lowlevel.checkpoint()  # where anyio delivers what it held back
            except asyncio.CancelledError:
                steps.append("cancelled")
                raise

    task = asyncio.create_task(caller())
    await begun.wait()
    for _ in range(3):
        if native:
            task.cancel()
        else:
            scope.cancel()
        await anyio.lowlevel.checkpoint()
    assert steps == []
    leave.set()
    await asyncio.wait([task])
    assert task.cancelled() is native
    assert steps == ["worked", "cancelled"]


@pytest.mark.parametrize("native", [False, True])
async def test_a_body_cancelled_while_a_thread_writes_waits_for_the_thread(
    tmp_path: Path, monkeypatch: Any, native: bool
) -> None:
    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    service = UploadService(config(), store, LocalBlobs(tmp_path / "blobs"))
    session, _ = await service.create(ME, "a", 2 << 20)
    attempt = await service.claim(session)
    writing, let_go = threading.Event(), threading.Event()
    order: list[str] = []
    real, real_close = os.writev, os.close

    def writev(descriptor: int, parts: Any) -> int:
        writing.set()
        let_go.wait(10)
        order.append("written")
        return real(descriptor, parts)

    def close(descriptor: int) -> None:
        if writing.is_set():
            order.append("closed")
        real_close(descriptor)

    monkeypatch.setattr(os, "writev", writev)
    monkeypatch.setattr(os, "close", close)
    task = asyncio.create_task(service.receive(attempt, chunked(bytes(2 << 20))))
    await anyio.to_thread.run_sync(writing.wait, 10)
    if native:
        task.cancel()
    else:
        task.cancel("twice")
        await asyncio.wait([asyncio.create_task(asyncio.sleep(0))])
        task.cancel()
    await asyncio.wait([asyncio.create_task(asyncio.sleep(0))])
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert order[: order.index("closed")].count("written") == order.count("written")
    found = await service.get(ME, session.upload_id)
    assert found.state is State.FAILED
    monkeypatch.undo()
    assert [one for one in (tmp_path / "blobs").rglob("*") if one.is_file()] == []
    await store.close()
