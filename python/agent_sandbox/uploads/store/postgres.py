"""PostgreSQL through asyncpg, also behind pgbouncer in transaction mode.

Every statement runs in an explicit transaction, with no named prepared statement and no setting
of the session, so that any pooler may hand out another server between two transactions.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import anyio
import asyncpg  # type: ignore[import-untyped]  # it ships no types

from agent_sandbox.errors import ConfigError, UploadBusyError, UploadOutcomeUnknownError
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.secrets import KeepsSecrets
from agent_sandbox.uploads.store import NewSession
from agent_sandbox.uploads.store.grouping import Groups
from agent_sandbox.uploads.store.sql import Row, SqlStore, keys_json, session_from
from agent_sandbox.uploads.store.statements import CREATE_MANY, MIGRATIONS

_log = logging.getLogger(__name__)

_TRIES = 5
_MIGRATION_LOCK = "uploads:migrate"
_LOCK = "SELECT pg_advisory_xact_lock({})"
_ABANDONED = "SET LOCAL idle_in_transaction_session_timeout = {}"
_CLOCK = """CREATE OR REPLACE FUNCTION uploads_now_ms() RETURNS BIGINT LANGUAGE sql VOLATILE
AS $$ SELECT CAST(floor(extract(epoch FROM clock_timestamp()) * 1000) AS BIGINT) $$"""
_KNOWN_KEYS = """SELECT object_key FROM upload_sessions
WHERE object_key IN (SELECT jsonb_array_elements_text(CAST(:keys AS JSONB)))"""

_FAULTS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what a connection that died under a statement may raise
    OSError,
    TimeoutError,
)

_UNDONE = (
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.ReadOnlySQLTransactionError,
)

_TYPES = {
    "secret_hmac": "BYTEA",
    **dict.fromkeys(("everything", "row_limit", "size_bytes"), "BIGINT"),
    **dict.fromkeys(("pending_max", "hourly_max"), "BIGINT"),
}


_SHARED = (
    *("workspace", "kind", "credential_id", "pending_max", "hourly_max"),
    *("put_life_ms", "use_life_ms"),
)
_OWN = ("upload_id", "endpoint", "filename", "size_bytes", "sha256", "secret_hmac")


@functools.cache
def numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `$1`-style parameters, and their names in order.

    Each is cast, since PostgreSQL guesses the type of a bare parameter from its first use.
    """
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            names.append(name)
        kind = "BIGINT" if name.endswith("_ms") else _TYPES.get(name, "TEXT")
        return f"CAST(${names.index(name) + 1} AS {kind})"

    return re.sub(r"(?<!:):([a-z]\w*)", number, sql), tuple(names)


def _lock_key(name: str) -> int:
    """Return the number of an advisory lock; two names may share one and then queue together."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


async def _keep(connection: object) -> None:
    """Leave a returned connection as it is: nothing of ours outlives a transaction."""


class PostgresStore(KeepsSecrets, SqlStore):
    """Sessions in a PostgreSQL database (12 or newer) that replicas share.

    Every method raises `ConfigError` (E6000) where the DSN cannot be read.

    Args:
        dsn: `postgresql://...`; never logged.
        pool_size: Most connections of this process.
        busy_timeout_s: Longest wait for a connection, and for a statement.
    """

    def __init__(self, dsn: str, *, pool_size: int = 20, busy_timeout_s: float = 5.0) -> None:
        self._dsn = dsn
        self._pool_size = pool_size
        self._busy_timeout_s = busy_timeout_s
        self._pool: asyncpg.Pool | None = None
        self._opening = asyncio.Lock()
        self._creations = Groups(self._create_all)

    def __repr__(self) -> str:
        return "PostgresStore(...)"  # the DSN holds a password

    async def migrate(self) -> None:
        """Bring the schema to this version."""

        async def steps(connection: Any) -> list[Row]:
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS upload_schema (version BIGINT NOT NULL)"
            )
            version = await connection.fetchval("SELECT max(version) FROM upload_schema") or 0
            if version < len(MIGRATIONS):
                if not version:
                    await connection.execute(_CLOCK)
                for statements in MIGRATIONS[version:]:
                    for statement in statements:
                        await connection.execute(statement.replace("{BYTES}", "BYTEA"))
                await connection.execute(
                    f"INSERT INTO upload_schema VALUES ({len(MIGRATIONS)})"  # noqa: S608 - a number
                )
            return []

        await self._transaction(steps, _MIGRATION_LOCK)

    async def close(self) -> None:
        """Close all connections, by force after a bounded wait."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                await asyncio.wait_for(pool.close(), self._busy_timeout_s)
            except TimeoutError:
                pool.terminate()

    async def create(self, new: NewSession) -> UploadSession:
        """Insert a pending session if the workspace's quotas allow it."""
        # All creations of a workspace queue for its lock, which is held until the disk has the
        # commit: those of one caller that wait together share a statement and a commit.
        together = tuple(getattr(new, name) for name in _SHARED)
        session = await to_its_end(self._creations.run(together, new))
        return session or await self._refuse(new)

    async def _create_all(self, news: Sequence[NewSession]) -> list[UploadSession | None]:
        values = {name: getattr(news[0], name) for name in _SHARED}
        items = [{name: getattr(new, name) for name in _OWN} for new in news]
        for item in items:
            item["secret_hmac"] = item["secret_hmac"].hex()
        values["items"] = json.dumps(items)
        # READ COMMITTED alone lets two inserts count the same rows; the lock makes them queue.
        rows = await self._run(CREATE_MANY, values, lock=f"uploads:{values['workspace']}")
        made = {row["upload_id"]: session_from(row) for row in rows}
        return [made.get(new.upload_id) for new in news]

    async def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Return those object keys that a row refers to."""
        rows = await self._run(_KNOWN_KEYS, {"keys": keys_json(keys)}, write=False)
        return {row["object_key"] for row in rows}

    async def _run(
        self, sql: str, values: Mapping[str, Any], *, write: bool = True, lock: str | None = None
    ) -> list[Row]:
        text, names = numbered(sql)
        arguments = [values[name] for name in names]

        async def steps(connection: Any) -> list[Row]:
            return [dict(row) for row in await connection.fetch(text, *arguments)]

        return await self._transaction(steps, lock, write=write)

    async def _transaction(self, steps: Any, lock: str | None, *, write: bool = True) -> list[Row]:
        # A cancelled task still learns how its commit ended. Every wait is bounded.
        return await to_its_end(self._tries(steps, lock, write))

    async def _tries(self, steps: Any, lock: str | None, write: bool) -> list[Row]:
        for turn in range(_TRIES):
            try:
                return await self._attempt(steps, lock, write)
            except asyncpg.ReadOnlySQLTransactionError:
                # After a failover the old primary still answers; new connections find the new one.
                if self._pool is not None:
                    await self._pool.expire_connections()
            except _UNDONE:
                pass
            # PostgreSQL undid the whole transaction; it may be run again.
            await asyncio.sleep(0.01 * 2**turn)
        raise UploadBusyError

    async def _attempt(self, steps: Any, lock: str | None, write: bool) -> list[Row]:
        committing = committed = False
        rows: list[Row] = []
        # One trip for all, since all creations of a workspace queue for its lock.
        begin = "BEGIN"
        if write:  # a replica that is stopped or cut off would hold its locks for hours
            begin += f"; {_ABANDONED.format(round(self._busy_timeout_s * 2_000))}"
        if lock is not None:
            begin += f"; {_LOCK.format(_lock_key(lock))}"
        try:
            async with self._acquired() as connection:
                try:
                    await connection.execute(begin)
                    rows = await steps(connection)
                except BaseException:
                    if not connection.is_closed():
                        await connection.execute("ROLLBACK")
                    raise
                committing = True
                await connection.execute("COMMIT")
                committed = True
        except _UNDONE:
            raise
        except _FAULTS as error:
            # Only the class: a driver's text can hold the DSN, and values.
            _log.warning("uploads database: %s", type(error).__name__)
            if committing and not committed and write:
                raise UploadOutcomeUnknownError("unknown") from None
            if not committed:
                raise UploadBusyError from None
        return rows

    @contextlib.asynccontextmanager
    async def _acquired(self) -> AsyncIterator[Any]:
        pool = await self._opened()
        try:
            connection = await pool.acquire(timeout=self._busy_timeout_s)
        except ValueError:  # the DSN is read only now, and the text may repeat it
            raise ConfigError("The address of the PostgreSQL database is no DSN.") from None
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _opened(self) -> asyncpg.Pool:
        async with self._opening:
            if self._pool is None:
                self._pool = await asyncpg.create_pool(
                    self._dsn,
                    min_size=0,
                    max_size=self._pool_size,
                    statement_cache_size=0,
                    timeout=self._busy_timeout_s,
                    command_timeout=self._busy_timeout_s,
                    reset=_keep,
                )
            return self._pool
