"""What becomes of a body: bounded bytes, whole bytes, a local file, nothing."""

from __future__ import annotations

import contextlib
import os
import secrets
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Generic, TypeVar

from pydantic import ValidationError

from agent_sandbox.bytestream import CappedBytes, SizeLimitError
from agent_sandbox.errors import AgentSandboxError, FileSizeLimitError, TransferError

SPILL_BYTES = 1_048_576
"""Bytes that are held before they are written to a local file at once."""

PARSE_INLINE_BYTES = 131_072
"""An answer above this is parsed in a worker thread, so that an event loop is not held up."""

DISCARD_BYTES = 65_536
"""Most that is read of a body nobody wants, so that its connection can be used again."""


T = TypeVar("T")


class Bounded:
    """Holds at most `limit` bytes; the next one is refused.

    Args:
        limit: Bound in bytes.
        declared: What Content-Length said, or None. It is never trusted: a body of another length
            is refused.
    """

    slow = False

    def __init__(self, limit: int, declared: int | None = None) -> None:
        self._limit, self._declared = limit, declared
        self._store = CappedBytes(limit)
        self._append = self._store.append
        if declared is not None and declared > limit:
            raise FileSizeLimitError(limit)

    def feed(self, chunk: bytes) -> None:
        try:
            self._append(chunk)
        except SizeLimitError:
            raise FileSizeLimitError(self._limit) from None

    def finish(self) -> bytes:
        if self._declared is not None and len(self._store) != self._declared:
            raise TransferError
        return self._store.finish()

    def discard(self) -> None:
        """Nothing to undo: what was held goes with this object."""


class Parsed(Generic[T]):
    """Holds at most `limit` bytes, and makes a value of them at the end.

    Args:
        limit: Bound in bytes.
        parse: Makes the value; a `ValidationError` of it means that the answer is broken.
        broken: What is raised for an answer that is broken or too long.
    """

    def __init__(
        self, limit: int, parse: Callable[[bytes], T], broken: type[AgentSandboxError]
    ) -> None:
        self._store = CappedBytes(limit)
        self._parse, self._broken = parse, broken

    @property
    def slow(self) -> bool:
        return len(self._store) > PARSE_INLINE_BYTES

    def feed(self, chunk: bytes) -> None:
        try:
            self._store.append(chunk)
        except SizeLimitError:
            raise self._broken from None

    def finish(self) -> T:
        try:
            return self._parse(self._store.finish())
        except ValidationError:
            raise self._broken from None

    def discard(self) -> None:
        """Nothing to undo: what was held goes with this object."""


class Whole:
    """Holds a body of any size."""

    slow = False

    def __init__(self) -> None:
        self._chunks: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)

    def finish(self) -> bytes:
        return b"".join(self._chunks)

    def discard(self) -> None:
        self._chunks.clear()


class Gunzipped(Whole):
    """Holds what a gzip body of any size unpacks to (RFC 1952, one or more members).

    HTTP clients take a body that breaks off, or that goes on with another member, for a good one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._member = zlib.decompressobj(31)

    def feed(self, chunk: bytes) -> None:
        while chunk:
            if self._member.eof:
                self._member = zlib.decompressobj(31)
            try:
                super().feed(self._member.decompress(chunk))
            except zlib.error:
                raise TransferError from None
            chunk = self._member.unused_data

    def finish(self) -> bytes:
        if not self._member.eof:
            raise TransferError
        return super().finish()


class Nothing:
    """Reads a short body to its end and drops it; a long one breaks the exchange."""

    slow = False

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
    file has mode 0666 less the umask, a replaced one keeps its permission bits, and nobody but
    the owner can open it before it has them.

    Args:
        goal: Where the file goes.
        limit: Bound in bytes, or None.
        declared: What Content-Length said, or None.
    """

    slow = True

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
            # A name of our own beside the goal, so that the rename stays in one file system;
            # O_EXCL never follows or reuses what somebody else put there.
            temp = self._goal.with_name(f".{secrets.token_hex(12)}.part")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            # What replaces a file must not be more open than that, also while it grows.
            mode = 0o600 if self._goal.exists() else 0o666
            self._file = os.fdopen(os.open(temp, flags, mode), "wb")
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
