"""Bounded accumulation of chunks."""

from __future__ import annotations

import hashlib
import io
import threading
from typing import NoReturn, final

from agent_sandbox.bytestream._python.arguments import Octets, size_of, snapshot, u64
from agent_sandbox.errors import SizeLimitError


@final
class CappedBytes:
    """Collect chunks into one `bytes` of at most `limit` bytes; the first byte more is refused.

    A chunk that does not fit is not stored in part: the memory is given back, and that call and
    every later one raise SizeLimitError. Nothing is reserved for a large limit. Calls from
    several threads are serialised; a mutable chunk is copied on entry.

    Args:
        limit: Most bytes to hold, from 0 to 2**64 - 1.
        sha256: Whether to hash the bytes as they come, for `hexdigest`.

    Raises:
        TypeError: `limit` is no `int` (`bool` is none here), or `sha256` is no `bool`.
        ValueError: `limit` is negative.
        OverflowError: `limit` is 2**64 or more.
    """

    __slots__ = ("_busy", "_failure", "_hash", "_hashed", "_length", "_limit", "_lock", "_store")
    __module__ = "agent_sandbox.bytestream"

    _busy: bool
    _failure: type[BaseException] | None
    _hash: hashlib._Hash | None
    _hashed: int
    _length: int
    _limit: int
    _lock: threading.RLock
    _store: io.BytesIO | None

    def __new__(cls, limit: int, /, *, sha256: bool = False) -> CappedBytes:
        cap = u64(limit, "limit", "an int")
        if type(sha256) is not bool:
            raise TypeError("sha256 must be a bool")
        self = object.__new__(cls)
        self._limit = cap
        self._hash = hashlib.sha256() if sha256 else None
        self._store = io.BytesIO()
        self._length = self._hashed = 0
        self._failure = None
        self._busy = False
        # Re-entrant, so that a signal handler or a finaliser that comes back here gets an error
        # instead of waiting for itself.
        self._lock = threading.RLock()
        return self

    def __init_subclass__(cls) -> None:
        raise TypeError(
            "type 'agent_sandbox.bytestream.CappedBytes' is not an acceptable base type"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'CappedBytes' object")

    def append(self, chunk: Octets, /) -> None:
        """Store one more chunk, all of it or nothing.

        Args:
            chunk: The bytes. A `memoryview` must be C-contiguous and of single bytes.

        Raises:
            SizeLimitError: E3001; the chunk does not fit, or an earlier one did not.
            TypeError: `chunk` is of another type.
            ValueError: `finish` was called before.
            MemoryError: There is no room, or was none before; the accumulator has ended.
        """
        with self._lock:
            self._refuse_reentry()
            store = self._open_store()
            self._busy = True
            try:
                size = size_of(chunk, "chunk")
                if size > self._limit - store.tell():
                    self._fail(SizeLimitError)
                    raise SizeLimitError(self._limit)
                # An asynchronous exception may come between any two steps. The write is the one
                # that counts: length and digest follow what the store holds.
                store.write(snapshot(chunk))
                self._catch_up(store)
            except MemoryError:
                self._fail(MemoryError)
                raise
            finally:
                self._busy = False

    def __len__(self) -> int:
        """Return how many bytes are held, or were handed out by `finish`.

        Raises:
            SizeLimitError: E3001; a chunk did not fit.
        """
        with self._lock:
            self._refuse_reentry()
            self._refuse_failure()
            return self._length if self._store is None else self._store.tell()

    def finish(self) -> bytes:
        """Hand out what was collected, once.

        Raises:
            SizeLimitError: E3001; a chunk did not fit.
            ValueError: `finish` was called before.
        """
        with self._lock:
            self._refuse_reentry()
            store = self._open_store()
            try:
                self._catch_up(store)
                self._length = store.tell()
                whole = store.getvalue()
            except MemoryError:
                self._fail(MemoryError)
                raise
            self._store = None
            return whole

    def hexdigest(self) -> str:
        """Return the sha256 of everything so far in lower-case hex, also after `finish`.

        Raises:
            SizeLimitError: E3001; a chunk did not fit.
            ValueError: The object was made without `sha256=True`.
        """
        with self._lock:
            self._refuse_reentry()
            self._refuse_failure()
            if self._hash is None:
                raise ValueError("the digest needs CappedBytes(limit, sha256=True)")
            if self._store is not None:
                self._catch_up(self._store)
            return self._hash.hexdigest()

    def _catch_up(self, store: io.BytesIO) -> None:
        """Hash what the store holds and the digest has not seen."""
        if self._hash is None or self._hashed == store.tell():
            return
        digest, length = self._hash.copy(), store.tell()
        with store.getbuffer() as held, held[self._hashed :] as rest:
            digest.update(rest)
        # No call stands between these two, so that no exception can come between them.
        self._hash = digest
        self._hashed = length

    def _fail(self, failure: type[BaseException]) -> None:
        store, self._failure, self._store, self._hash = self._store, failure, None, None
        if store is not None:
            store.close()  # gives the memory back, whoever still looks at the failed call

    def _refuse_reentry(self) -> None:
        if self._busy:
            raise RuntimeError("CappedBytes is in use by an outer call of the same thread")

    def _refuse_failure(self) -> None:
        if self._failure is SizeLimitError:
            raise SizeLimitError(self._limit)
        if self._failure is not None:
            raise self._failure

    def _open_store(self) -> io.BytesIO:
        self._refuse_failure()
        if self._store is None:
            raise ValueError("finish() was called before")
        return self._store
