"""What becomes of a body: bounded bytes, whole bytes, a local file, nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import IO

from agent_sandbox.bytestream import CappedBytes, SizeLimitError
from agent_sandbox.errors import AgentSandboxError, FileSizeLimitError, TransferError

SPILL_BYTES = 1_048_576
"""Bytes that are held before they are written to a local file at once."""

DISCARD_BYTES = 65_536
"""Most that is read of a body nobody wants, so that its connection can be used again."""


class Bounded:
    """Holds at most `limit` bytes; the next one is refused.

    Args:
        limit: Bound in bytes.
        declared: What Content-Length said, or None. It is never trusted: a body of another length
            is refused.
        over: What is raised for the byte past the bound.
    """

    def __init__(
        self,
        limit: int,
        declared: int | None = None,
        over: Callable[[int], AgentSandboxError] = FileSizeLimitError,
    ) -> None:
        self._limit, self._declared, self._over = limit, declared, over
        self._store = CappedBytes(limit)
        self._append = self._store.append
        if declared is not None and declared > limit:
            raise over(limit)

    def feed(self, chunk: bytes) -> None:
        try:
            self._append(chunk)
        except SizeLimitError:
            raise self._over(self._limit) from None

    def finish(self) -> bytes:
        if self._declared is not None and len(self._store) != self._declared:
            raise TransferError
        return self._store.finish()

    def discard(self) -> None:
        """Nothing to undo: what was held goes with this object."""


class Whole:
    """Holds a body of any size."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def finish(self) -> bytes:
        return b"".join(self._chunks)

    def discard(self) -> None:
        self._chunks.clear()


class Nothing:
    """Reads a short body to its end and drops it; a long one breaks the exchange."""

    def __init__(self) -> None:
        self._count = 0

    def feed(self, chunk: bytes) -> None:
        self._count += len(chunk)
        if self._count > DISCARD_BYTES:
            raise TransferError

    def finish(self) -> None:
        return None

    def discard(self) -> None:
        """Nothing to undo."""


class LocalFile:
    """Writes a body to a temporary file beside its goal and renames it at the end.

    The goal is old or complete and new, never partial; a failure leaves no temporary file. A new
    file has mode 0666 less the umask, a replaced one keeps its permission bits.

    Args:
        goal: Where the file goes.
        limit: Bound in bytes, or None.
        declared: What Content-Length said, or None.
    """

    def __init__(self, goal: Path, limit: int | None, declared: int | None) -> None:
        if limit is not None and declared is not None and declared > limit:
            raise FileSizeLimitError(limit)
        self._goal, self._limit, self._declared = goal, limit, declared
        self._count = 0
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._temp: Path | None = None
        self._file: IO[bytes] | None = None

    def feed(self, chunk: bytes) -> bool:
        """Count a chunk and hold it; returns whether it is time to `spill`."""
        self._count += len(chunk)
        if self._limit is not None and self._count > self._limit:
            raise FileSizeLimitError(self._limit)
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        return self._held_bytes >= SPILL_BYTES

    def spill(self) -> None:
        """Write what is held to the disk."""
        if self._file is None:
            # A name of our own beside the goal, so that the rename stays in one file system; "x"
            # never follows or reuses what somebody else put there.
            temp = self._goal.with_name(f".{secrets.token_hex(12)}.part")
            self._file = temp.open("xb")
            self._temp = temp
        self._file.writelines(self._held)
        self._held.clear()
        self._held_bytes = 0

    def finish(self) -> int:
        if self._declared is not None and self._count != self._declared:
            raise TransferError
        self.spill()
        file, temp = self._file, self._temp
        if file is None or temp is None:
            raise TransferError
        file.flush()
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(file.fileno(), self._goal.stat().st_mode & 0o777)
        if os.fstat(file.fileno()).st_size != self._count:
            raise TransferError
        file.close()
        temp.replace(self._goal)
        self._temp = None
        return self._count

    def discard(self) -> None:
        self._held.clear()
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: the file goes anyway
                self._file.close()
        if self._temp is not None:
            self._temp.unlink(missing_ok=True)
            self._temp = None
