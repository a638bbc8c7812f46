"""What only SQLite promises: its journal, its file, and its neighbours."""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from pathlib import Path

import anyio
import pytest
from tests.uploads.store.test_store import new

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
    assert 0.2 < time.monotonic() - began < 3
    other.execute("ROLLBACK")
    other.close()
    assert await store.read("a") is None
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
