"""A database that an earlier version made is brought up, with the rows it holds."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.support.upload_parts import fresh_database
from tests.support.upload_rows import new

from agent_sandbox.uploads.store import postgres, sqlite
from agent_sandbox.uploads.store.postgres import PostgresStore
from agent_sandbox.uploads.store.sql import SqlStore
from agent_sandbox.uploads.store.sqlite import SqliteStore
from agent_sandbox.uploads.store.statements import MIGRATIONS


async def upgraded(old: SqlStore, young: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a database of the first version with one row, then bring it up."""
    with monkeypatch.context() as first:
        for module in (sqlite, postgres):
            first.setattr(module, "MIGRATIONS", MIGRATIONS[:1])
        await old.migrate()
    session = await old.create(new())
    await old.close()
    await young.migrate()
    await young.migrate()  # a second time changes nothing
    found = await young.read(session.upload_id)
    assert found is not None
    assert found.upload_id == session.upload_id
    await young.create(new())
    await young.close()


async def test_an_older_sqlite_file_is_brought_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "db"
    await upgraded(SqliteStore(path), SqliteStore(path), monkeypatch)
    connection = sqlite3.connect(path)
    names = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "upload_sessions_pending" in names
    assert "upload_sessions_quota" not in names


async def test_an_older_postgresql_database_is_brought_up(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dsn = await fresh_database(postgres_dsn, "migrations")
    await upgraded(PostgresStore(dsn), PostgresStore(dsn), monkeypatch)
    connection = await asyncpg.connect(dsn)
    names = {row[0] for row in await connection.fetch("SELECT indexname FROM pg_indexes")}
    await connection.close()
    assert "upload_sessions_pending" in names
    assert "upload_sessions_quota" not in names
