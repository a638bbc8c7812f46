"""SQLite, for one host: rollback journal, synchronous FULL.

WAL is not used: SQLite 3.7.0 to 3.51.2 can corrupt a WAL database that two connections reset.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from agent_sandbox.errors import UploadBusyError, UploadOutcomeUnknownError
from agent_sandbox.uploads.store.sql import Row, SqlStore, keys_json
from agent_sandbox.uploads.store.statements import MIGRATIONS

_log = logging.getLogger(__name__)

_KNOWN_KEYS = """SELECT object_key FROM upload_sessions
WHERE object_key IN (SELECT value FROM json_each(:keys))"""


def _host_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteStore(SqlStore):
    """Sessions in one SQLite file, which several processes of a host may share.

    Args:
        path: The database file; made with mode 0600 if it is missing.
        busy_timeout_s: How long a statement waits for another process's lock.
        clock: The database's clock in Unix milliseconds; the host's, except in tests.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        busy_timeout_s: float = 5.0,
        clock: Callable[[], int] = _host_clock_ms,
    ) -> None:
        self._path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._clock = clock
        self._now = 0
        self._connection: sqlite3.Connection | None = None
        # One statement at a time: a rollback journal has one writer anyway.
        self._turn = anyio.CapacityLimiter(1)

    async def migrate(self) -> None:
        """Bring the schema to this version."""
        await run_sync(self._migrate, limiter=self._turn)

    async def close(self) -> None:
        """Close the connection."""
        with anyio.CancelScope(shield=True):
            await run_sync(self._close, limiter=self._turn)

    async def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Return those object keys that a row refers to."""
        rows = await self._run(_KNOWN_KEYS, {"keys": keys_json(keys)}, write=False)
        return {row["object_key"] for row in rows}

    async def _run(
        self, sql: str, values: Mapping[str, Any], *, write: bool = True, lock: str | None = None
    ) -> list[Row]:
        # BEGIN IMMEDIATE already is the lock that `lock` asks for. A thread is never abandoned;
        # the shield keeps its result from being lost to a cancellation.
        with anyio.CancelScope(shield=True):
            rows = await run_sync(self._execute, sql, dict(values), write, limiter=self._turn)
        return rows

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            connection = sqlite3.connect(
                self._path,
                timeout=self._busy_timeout_s,
                isolation_level=None,
                check_same_thread=False,
            )
            connection.row_factory = sqlite3.Row
            # One reading of the clock for each statement, as if it were the database's own.
            connection.create_function("uploads_now_ms", 0, lambda: self._now)
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("PRAGMA synchronous = FULL")
            self._connection = connection
        return self._connection

    def _execute(self, sql: str, values: dict[str, Any], write: bool) -> list[Row]:
        committing = False
        connection: sqlite3.Connection | None = None
        try:
            connection = self._open()
            if write:
                connection.execute("BEGIN IMMEDIATE")
            self._now = self._clock()  # after the lock: a wait must not buy time
            rows: list[Row] = [dict(row) for row in connection.execute(sql, values).fetchall()]
            if write:
                committing = True
                connection.execute("COMMIT")
        except sqlite3.Error as error:
            _log.warning("uploads database: %s", error.sqlite_errorname)
            settled = self._undo(connection)
            # A commit that was only busy, or was undone, certainly changed nothing.
            if committing and not settled:
                raise UploadOutcomeUnknownError("unknown") from None
            raise UploadBusyError from None
        return rows

    def _undo(self, connection: sqlite3.Connection | None) -> bool:
        """Roll back what is open; say whether nothing can have been committed."""
        try:
            if connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
                return True
        except sqlite3.Error:
            self._close()
        return False

    def _migrate(self) -> None:
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement.replace("{BYTES}", "BLOB"))
            connection.execute(f"PRAGMA user_version = {max(version, len(MIGRATIONS))}")
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            _log.warning("uploads database: %s", error.sqlite_errorname)
            self._undo(self._connection)
            raise UploadBusyError from None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
