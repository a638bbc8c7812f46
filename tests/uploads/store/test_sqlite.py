"""What only SQLite promises: its journal, its file, and its neighbours."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.upload_rows import new

from agent_sandbox.errors import UploadBusyError
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store.sqlite import SqliteStore


async def test_the_journal_is_rolled_back_and_synced_in_full(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = SqliteStore(path)
    await store.migrate()
    connection = store._open()
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    await store.close()


async def test_a_lock_of_another_process_is_waited_for(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    async with anyio.create_task_group() as group:
        group.start_soon(store.create, new(upload_id="a"))
        await anyio.sleep(0.3)  # not to synchronise: the lock must be held for a while
        other.execute("COMMIT")
    other.close()
    found = await store.read("a")
    assert found is not None
    assert found.state is State.PENDING
    await store.close()


async def test_a_lock_that_stays_is_busy_after_the_bound_and_changes_nothing(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "db", busy_timeout_s=0.3)
    await store.migrate()
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    began = time.monotonic()
    with pytest.raises(UploadBusyError):
        await store.create(new(upload_id="a"))
    assert 0.2 < time.monotonic() - began < 30
    other.execute("ROLLBACK")
    other.close()
    assert await store.read("a") is None
    await store.close()


async def test_those_who_wait_behind_a_lock_that_stays_do_not_wait_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(tmp_path / "db", busy_timeout_s=1.0)
    await store.migrate()
    batches: list[int] = []
    began = threading.Event()
    real = store._execute

    def execute(batch: list[Any]) -> None:
        batches.append(len(batch))
        began.set()
        real(batch)

    monkeypatch.setattr(store, "_execute", execute)
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    busy: list[str] = []

    async def create(name: str) -> None:
        try:
            await store.create(new(upload_id=name))
        except UploadBusyError:
            busy.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(create, "first")
        assert await anyio.to_thread.run_sync(began.wait, 10)
        for name in ("second", "third"):
            group.start_soon(create, name)
    other.execute("COMMIT")
    other.close()
    assert sorted(busy) == ["first", "second", "third"]
    assert batches == [1]
    assert (await store.create(new(upload_id="later"))).state is State.PENDING
    await store.close()


async def test_a_reader_in_the_way_of_a_commit_undoes_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db", busy_timeout_s=0.3)
    await store.migrate()
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM upload_sessions").fetchone()
    with pytest.raises(UploadBusyError):
        await store.create(new(upload_id="a"))
    other.execute("COMMIT")
    other.close()
    assert await store.read("a") is None
    assert (await store.create(new(upload_id="a"))).state is State.PENDING
    await store.close()


async def test_a_broken_file_is_busy_and_tells_nothing(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.write_bytes(b"no database" * 1_000)
    store = SqliteStore(path)
    with pytest.raises(UploadBusyError) as refusal:
        await store.migrate()
    assert refusal.value.__suppress_context__
    await store.close()


async def test_statements_that_wait_together_share_a_commit_and_keep_their_order(
    tmp_path: Path,
) -> None:
    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    batches: list[int] = []
    real = store._execute

    def execute(batch: list[Any]) -> None:
        batches.append(len(batch))
        real(batch)

    store._execute = execute  # type: ignore[method-assign]  # to look, not to change
    async with anyio.create_task_group() as group:
        for turn in range(100):
            group.start_soon(store.create, new(upload_id=f"{turn:03}", pending_max=1_000))
    assert len(batches) < 10
    assert max(batches) <= 64
    rows = await store._run("SELECT upload_id FROM upload_sessions ORDER BY rowid", {})
    assert [row["upload_id"] for row in rows] == [f"{turn:03}" for turn in range(100)]
    await store.close()


async def test_a_commit_that_fails_fails_everything_that_shared_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db", busy_timeout_s=0.1)
    await store.migrate()
    other = sqlite3.connect(tmp_path / "db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    refused: list[int] = []

    async def create(turn: int) -> None:
        with pytest.raises(UploadBusyError):
            await store.create(new(upload_id=str(turn)))
        refused.append(turn)

    async with anyio.create_task_group() as group:
        for turn in range(5):
            group.start_soon(create, turn)
    assert len(refused) == 5
    other.execute("ROLLBACK")
    other.close()
    assert await store._run("SELECT 1 AS n FROM upload_sessions", {}) == []
    await store.close()


async def test_a_fault_of_ours_leaves_nobody_waiting(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    ended: list[str] = []

    async def read(upload_id: str) -> None:
        try:
            await store.read(upload_id)
        except (UnicodeError, UploadBusyError) as error:
            ended.append(type(error).__name__)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for upload_id in ("a", "\udcff", "b"):
                group.start_soon(read, upload_id)
        assert ended
        await store.create(new(upload_id="c"))
    await store.close()


async def test_a_file_that_was_replaced_under_a_running_store_is_found(tmp_path: Path) -> None:
    path = tmp_path / "db"
    store = SqliteStore(path)
    await store.migrate()
    await store.create(new(upload_id="a"))
    path.with_name("copy").write_bytes(path.read_bytes())
    path.rename(tmp_path / "away")
    for _ in range(2):  # nothing is made in its place
        with pytest.raises(UploadBusyError):
            await store.create(new(upload_id="b"))
        assert not path.exists()
    path.with_name("copy").rename(path)
    await store.create(new(upload_id="c"))
    assert await store.read("a") is not None
    assert await store.read("b") is None
    await store.close()
