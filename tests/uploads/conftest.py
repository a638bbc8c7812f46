from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]  # it ships no types
import pytest
from tests.support import upload_parts
from tests.support.upload_parts import (
    PG_CLOCK,
    START_MS,
    BlobFaults,
    Database,
    config,
    fresh_database,
)

from agent_sandbox.uploads.blobs import BlobStore
from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.blobs.s3 import S3Blobs
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.postgres import PostgresStore
from agent_sandbox.uploads.store.sqlite import SqliteStore


@pytest.fixture(scope="session")
def postgres_dsn() -> Iterator[str]:
    with upload_parts.postgres() as dsn:
        yield dsn


@pytest.fixture(scope="session")
def s3_settings() -> Iterator[dict[str, Any]]:
    with upload_parts.s3_server() as settings:
        yield settings


async def _sqlite(path: Path) -> AsyncIterator[Database]:
    now = [START_MS]
    stores: list[SqliteStore] = []

    def another() -> SqliteStore:
        stores.append(SqliteStore(path, clock=lambda: now[0]))
        return stores[-1]

    async def execute(sql: str) -> list[Mapping[str, Any]]:
        return await store._run(sql, {})

    async def set_clock(now_ms: int) -> None:
        now[0] = now_ms

    store = another()
    await store.migrate()
    yield Database(store, execute, set_clock, another)
    for one in stores:
        await one.close()


_PREPARED: dict[str, str] = {}
"""The suite's database on each server."""


async def _postgres(dsn: str) -> AsyncIterator[Database]:
    # One database for the whole run: making one takes longer than most tests.
    fresh = dsn not in _PREPARED
    own = _PREPARED.get(dsn) or await fresh_database(dsn, "suite")
    _PREPARED[dsn] = own
    stores: list[PostgresStore] = []

    def another() -> PostgresStore:
        stores.append(PostgresStore(own))
        return stores[-1]

    store = another()
    await store.migrate()
    connection = await asyncpg.connect(own)

    async def execute(sql: str) -> list[Mapping[str, Any]]:
        return [dict(row) for row in await connection.fetch(sql)]

    async def set_clock(now_ms: int) -> None:
        await connection.execute("UPDATE test_clock SET now_ms = $1", now_ms)

    if fresh:
        for statement in PG_CLOCK:
            await connection.execute(statement)
    await connection.execute("TRUNCATE upload_sessions, test_clock")
    await connection.execute("INSERT INTO test_clock VALUES ($1)", START_MS)
    yield Database(store, execute, set_clock, another)
    await connection.close()
    for one in stores:
        await one.close()


@pytest.fixture(params=["sqlite", "postgres"])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Database]:
    if request.param == "sqlite":
        made = _sqlite(tmp_path / "uploads.db")
    else:
        made = _postgres(request.getfixturevalue("postgres_dsn"))
    async for one in made:
        yield one


@pytest.fixture
def faults(tmp_path: Path) -> BlobFaults:
    return BlobFaults(LocalBlobs(tmp_path / "blobs"))


@pytest.fixture
def service(database: Database, faults: BlobFaults) -> UploadService:
    return UploadService(config(), database.store, faults)


@pytest.fixture(params=["local", "s3"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return LocalBlobs(tmp_path / "blobs")
    settings = request.getfixturevalue("s3_settings")
    return S3Blobs(**settings, prefix=tmp_path.name)
