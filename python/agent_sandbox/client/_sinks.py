"""What becomes of a body: bytes, an unpacked one, a value, nothing (`local_files`: a file)."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Generic, TypeVar

from pydantic import ValidationError

from agent_sandbox.bytestream import CappedBytes, SizeLimitError
from agent_sandbox.errors import AgentSandboxError, FileSizeLimitError, TransferError

PARSE_INLINE_BYTES = 131_072
"""An answer above this is parsed in a worker thread, so that an event loop is not held up."""

INFLATE_BYTES = 1_048_576
"""Most compressed bytes that are held, and most that are unpacked at once."""

_NO_LIMIT = (1 << 64) - 1
"""The largest bound that `CappedBytes` takes."""

DISCARD_BYTES = 65_536
"""Most that is read of a body nobody wants, so that its connection can be used again."""


T = TypeVar("T")


class Count:
    """Counts a body against its bound and its declared length.

    Args:
        limit: Bound in bytes, or None.
        declared: What Content-Length said, or None. It is never trusted: one over the bound is
            refused at once, and at the end a body of another length.

    Attributes:
        bytes_seen: Count so far.
    """

    def __init__(self, limit: int | None, declared: int | None) -> None:
        self._limit = _NO_LIMIT if limit is None else limit
        self._declared = declared
        self.bytes_seen = 0
        self.check(declared or 0)

    def check(self, count: int) -> None:
        """Refuse a number of bytes over the bound."""
        if count > self._limit:
            raise FileSizeLimitError(self._limit)

    def add(self, chunk: bytes) -> None:
        """Count a chunk, or refuse it."""
        self.bytes_seen += len(chunk)
        self.check(self.bytes_seen)

    def end(self) -> None:
        """Refuse a body that is shorter or longer than it was declared."""
        if self._declared not in (None, self.bytes_seen):
            raise TransferError


class Bytes:
    """Holds a body in memory, once; `limit` None is no bound.

    See `Count` for the arguments.
    """

    slow = False

    def __init__(self, limit: int | None, declared: int | None = None) -> None:
        self._count = Count(limit, declared)
        self._store = CappedBytes(_NO_LIMIT if limit is None else limit)

    def feed(self, chunk: bytes) -> None:
        self._count.add(chunk)
        self._store.append(chunk)

    def finish(self) -> bytes:
        self._count.end()
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


class Gunzipped:
    """Holds what a gzip body of any size unpacks to (RFC 1952, one or more members).

    HTTP clients take a body that breaks off, or that goes on with another member, for a good one.
    """

    slow = True

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._store = CappedBytes(_NO_LIMIT)
        self._member = zlib.decompressobj(31)

    def feed(self, chunk: bytes) -> bool:
        """Hold a chunk; returns whether it is time to `spill`."""
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        return self._held_bytes >= INFLATE_BYTES

    def spill(self) -> None:
        """Unpack what is held."""
        for chunk in self._held:
            try:
                self._unpack(chunk)
            except zlib.error:
                raise TransferError from None
        self._held.clear()
        self._held_bytes = 0

    def _unpack(self, chunk: bytes) -> None:
        more = bool(chunk)
        while more:
            if self._member.eof:
                self._member = zlib.decompressobj(31)
            # By pieces: a chunk can unpack to a thousand times its size.
            piece = self._member.decompress(chunk, INFLATE_BYTES)
            self._store.append(piece)
            chunk = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            # A full piece may leave more inside the decompressor, though all is taken.
            more = bool(chunk) or (len(piece) == INFLATE_BYTES and not self._member.eof)

    def finish(self) -> bytes:
        self.spill()
        if not self._member.eof:
            raise TransferError
        return self._store.finish()

    def discard(self) -> None:
        """Nothing to undo: what was held goes with this object."""


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
