"""SQLite, for one host: rollback journal, synchronous FULL.

WAL is not used: SQLite 3.7.0 to 3.51.2 can corrupt a WAL database that two connections reset.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from anyio.to_thread import run_sync

from agent_sandbox.errors import UploadBusyError, UploadError, UploadOutcomeUnknownError
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.store.sql import Row, SqlStore, keys_json
from agent_sandbox.uploads.store.statements import MIGRATIONS

_log = logging.getLogger(__name__)

_MOVED = "SQLITE_READONLY_DBMOVED"
"""The path leads to another file now, or to none: the next call looks again."""

_BATCH = 64
"""Most statements in one transaction."""

_KNOWN_KEYS = """SELECT object_key FROM upload_sessions
WHERE object_key IN (SELECT value FROM json_each(:keys))"""


def _host_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclasses.dataclass(slots=True, eq=False)
class _Job:
    """One statement that waits for its turn, then its rows or its error."""

    sql: str
    values: dict[str, Any] = dataclasses.field(repr=False)
    write: bool
    rows: list[Row] | None = dataclasses.field(default=None, repr=False)
    error: UploadError | None = None


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
        # One transaction at a time: a rollback journal has one writer anyway.
        self._turn = anyio.CapacityLimiter(1)
        self._leading = anyio.Lock()
        self._waiting: list[_Job] = []

    async def migrate(self) -> None:
        """Bring the schema to this version."""
        await to_its_end(run_sync(self._migrate, limiter=self._turn))

    async def close(self) -> None:
        """Close the connection."""
        await to_its_end(run_sync(self._close, limiter=self._turn))

    async def known_keys(self, keys: Sequence[str]) -> set[str]:
        """Return those object keys that a row refers to."""
        rows = await self._run(_KNOWN_KEYS, {"keys": keys_json(keys)}, write=False)
        return {row["object_key"] for row in rows}

    async def _run(self, sql: str, values: Mapping[str, Any], *, write: bool = True) -> list[Row]:
        job = _Job(sql, dict(values), write)
        self._waiting.append(job)
        # Whoever has the turn runs all that wait, in order and with one commit: syncing the
        # disk is most of the work.
        await to_its_end(self._take_turn(job))
        if job.error is not None:
            raise job.error
        return job.rows or []

    async def _take_turn(self, job: _Job) -> None:
        while job.rows is None and job.error is None:
            async with self._leading:
                if job.rows is not None or job.error is not None:
                    break  # done by the one before; more wait, and more may still join
                batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
                await run_sync(self._execute, batch, limiter=self._turn)
                if isinstance(batch[0].error, UploadBusyError):
                    # The lock was waited for in vain. Those behind have waited as long already,
                    # and must not begin a wait of their own.
                    for behind in self._waiting:
                        behind.error = UploadBusyError()
                    self._waiting = []

    def _open(self, *, create: bool = False) -> sqlite3.Connection:
        if self._connection is None:
            # A file that is gone is not made anew: an empty one has no tables.
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
            os.close(os.open(self._path, flags, 0o600))
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

    def _execute(self, batch: list[_Job]) -> None:
        """Run some statements in one transaction, and give each job its rows or its error."""
        committing = False
        connection: sqlite3.Connection | None = None
        results: list[list[Row]] = []
        try:
            connection = self._open()
            if any(job.write for job in batch):
                connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                self._now = self._clock()  # after the lock: a wait must not buy time
                rows = connection.execute(job.sql, job.values).fetchall()
                results.append([dict(row) for row in rows])
            if connection.in_transaction:
                committing = True
                connection.execute("COMMIT")
        except Exception as error:
            _log.warning("uploads database: %s", _name(error))
            settled = self._undo(connection)
            if _name(error) == _MOVED:
                self._close()
            for job in batch:
                # A commit that was only busy, or was undone, certainly changed nothing.
                unknown = committing and not settled and job.write
                job.error = UploadOutcomeUnknownError("unknown") if unknown else UploadBusyError()
            if not isinstance(error, sqlite3.Error | OSError):
                raise  # a fault of ours; but nobody may be left waiting for it
        else:
            for job, rows_of_it in zip(batch, results, strict=True):
                job.rows = rows_of_it

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
            connection = self._open(create=True)
            connection.execute("BEGIN IMMEDIATE")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            for statements in MIGRATIONS[version:]:
                for statement in statements:
                    connection.execute(statement.replace("{BYTES}", "BLOB"))
            connection.execute(f"PRAGMA user_version = {max(version, len(MIGRATIONS))}")
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            _log.warning("uploads database: %s", _name(error))
            self._undo(self._connection)
            raise UploadBusyError from None

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _name(error: Exception) -> str:
    """Return what may be logged of an error: never its text, which can hold values."""
    return str(getattr(error, "sqlite_errorname", type(error).__name__))
