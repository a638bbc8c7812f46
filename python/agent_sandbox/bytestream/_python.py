"""The byte core on the standard library alone: slower than `_native`, and equal to it.

Names, results, exception types, texts and offsets are those of the native module for every
input; the tests run one suite over both. Types are looked at through `type()`, and subclasses
are reduced to the exact type first, so that no method of the caller's can run in between.
"""

from __future__ import annotations

import binascii
import hashlib
import io
import re
import threading
from typing import Final, NoReturn, TypeGuard, cast, final

from agent_sandbox.errors import Base64Error, SizeLimitError

__all__ = [
    "CappedBytes",
    "Sha256",
    "b64decode",
    "b64decode_sha256",
    "b64encode",
    "b64encode_sha256",
]

Octets = bytes | bytearray | memoryview

_OVER_U64: Final = 1 << 64
_BYTE_FORMATS: Final = ("B", "b", "c")
_STR_OFFENDER: Final = re.compile(r"[^A-Za-z0-9+/]")
_BYTES_OFFENDER: Final = re.compile(rb"[^A-Za-z0-9+/]")

# Last symbols whose unused bits are zero, by the number of padding symbols behind them.
_CANONICAL_LAST: Final = {1: frozenset(b"AEIMQUYcgkosw048"), 2: frozenset(b"AQgw")}


def b64decode(data: str | Octets, /, *, max_bytes: int | None = None) -> bytes:
    """Decode canonical Base64, or refuse it: no input is repaired.

    Standard alphabet, length a multiple of 4, padding exactly where due, unused trailing bits
    zero. With `max_bytes` the checks come in this order: encoded length over
    `4 * ceil(max_bytes / 3)`; length not a multiple of 4; decoded size, as the padding tells it,
    over the bound; then the symbols. Nothing is allocated for the result before the last step.
    A `str` counts in code points. Source: RFC 4648 sections 3.5 and 4.

    Args:
        data: The text. A `memoryview` must be C-contiguous and of single bytes.
        max_bytes: Most bytes that the result may have; None for no bound.

    Raises:
        Base64Error: E2003, with the `offset` of the first offending symbol; the length of the
            input where the length is wrong; the last symbol where its unused bits are not zero.
        SizeLimitError: E3001, with the `limit`.
        TypeError: `data` or `max_bytes` is of another type (`bool` is no `int` here).
        ValueError: `max_bytes` is negative.
        OverflowError: `max_bytes` is 2**64 or more.
    """
    length = str.__len__(data) if _is_str(data) else _size(data, "data", or_str=True)
    cap = None if max_bytes is None else _u64(max_bytes, "max_bytes", "an int or None")
    if cap is not None and length > 4 * -(-cap // 3):
        raise SizeLimitError(cap)
    # Beyond this line every step works on one immutable snapshot.
    text = str.__str__(data) if _is_str(data) else _snapshot(cast("Octets", data))
    return _decode(text, cap)


def b64encode(data: Octets, /) -> str:
    """Encode bytes as canonical Base64: padded, without line breaks (RFC 4648 section 4).

    Args:
        data: The bytes. A `memoryview` must be C-contiguous and of single bytes.

    Raises:
        TypeError: `data` is of another type.
    """
    _size(data, "data")
    return binascii.b2a_base64(_snapshot(data), newline=False).decode("ascii")


def b64decode_sha256(data: str | Octets, /, *, max_bytes: int | None = None) -> tuple[bytes, str]:
    """Decode like `b64decode`, and give the lower-case hex sha256 of the decoded bytes with them.

    Args:
        data: As for `b64decode`.
        max_bytes: As for `b64decode`.

    Raises:
        Base64Error: E2003, as `b64decode`.
        SizeLimitError: E3001, as `b64decode`.
        TypeError: As `b64decode`.
        ValueError: As `b64decode`.
        OverflowError: As `b64decode`.
    """
    raw = b64decode(data, max_bytes=max_bytes)
    return raw, hashlib.sha256(raw).hexdigest()


def b64encode_sha256(data: Octets, /) -> tuple[str, str]:
    """Encode like `b64encode`, and give the lower-case hex sha256 of the raw bytes with it.

    Args:
        data: As for `b64encode`.

    Raises:
        TypeError: `data` is of another type.
    """
    _size(data, "data")
    raw = _snapshot(data)
    return binascii.b2a_base64(raw, newline=False).decode("ascii"), hashlib.sha256(raw).hexdigest()


@final
class Sha256:
    """A running SHA-256 (FIPS 180-4): the digest depends on the bytes, not on their chunking.

    Calls from several threads on one object are serialised. A mutable buffer is copied on entry.
    """

    __slots__ = ("_hash",)
    __module__ = "agent_sandbox.bytestream"

    _hash: hashlib._Hash

    def __new__(cls) -> Sha256:
        self = object.__new__(cls)
        self._hash = hashlib.sha256()
        return self

    def __init_subclass__(cls) -> None:
        raise TypeError("type 'agent_sandbox.bytestream.Sha256' is not an acceptable base type")

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle 'Sha256' object")

    def update(self, data: Octets, /) -> None:
        """Hash more bytes.

        Args:
            data: The bytes. A `memoryview` must be C-contiguous and of single bytes.

        Raises:
            TypeError: `data` is of another type.
        """
        _size(data, "data")
        self._hash.update(_snapshot(data))

    def digest(self) -> bytes:
        """Return the 32 bytes of the digest of everything so far; more may follow."""
        return self._hash.digest()

    def hexdigest(self) -> str:
        """Return the digest of everything so far in lower-case hex; more may follow."""
        return self._hash.hexdigest()

    def copy(self) -> Sha256:
        """Return an independent hash that has seen the same bytes."""
        twin = Sha256()
        twin._hash = self._hash.copy()
        return twin


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
        cap = _u64(limit, "limit", "an int")
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
                size = _size(chunk, "chunk")
                if size > self._limit - store.tell():
                    self._fail(SizeLimitError)
                    raise SizeLimitError(self._limit)
                # An asynchronous exception may come between any two steps. The write is the one
                # that counts: length and digest follow what the store holds.
                store.write(_snapshot(chunk))
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


def _u64(value: object, name: str, wanted: str) -> int:
    if not _is_int(value) or type(value) is bool:
        raise TypeError(f"{name} must be {wanted}")
    number = int.__index__(value)
    if number < 0:
        raise ValueError(f"{name} must not be negative")
    if number >= _OVER_U64:
        raise OverflowError(f"{name} must be below 2**64")
    return number


# isinstance() believes an object's __class__, and the native module does not.


def _is_int(value: object) -> TypeGuard[int]:
    return issubclass(type(value), int)


def _is_str(value: object) -> TypeGuard[str]:
    return issubclass(type(value), str)


def _is_bytes(value: object) -> TypeGuard[bytes]:
    return issubclass(type(value), bytes)


def _is_bytearray(value: object) -> TypeGuard[bytearray]:
    return issubclass(type(value), bytearray)


def _is_memoryview(value: object) -> TypeGuard[memoryview]:
    return type(value) is memoryview


def _size(data: object, name: str, *, or_str: bool = False) -> int:
    """Return the size in bytes of a buffer of a type that is taken, else raise."""
    if _is_bytes(data):
        return bytes.__len__(data)
    if _is_bytearray(data):
        return bytearray.__len__(data)
    if _is_memoryview(data):
        contiguous = data.c_contiguous or not data.nbytes  # no bytes have no gaps
        if not contiguous or data.format not in _BYTE_FORMATS:
            raise TypeError("a memoryview must be C-contiguous and of single bytes")
        return data.nbytes
    kinds = "str, bytes, bytearray or memoryview" if or_str else "bytes, bytearray or memoryview"
    raise TypeError(f"{name} must be {kinds}")


def _snapshot(data: Octets) -> bytes:
    """Return `data`, whose type was checked, as exact `bytes`; only exact `bytes` are shared."""
    if type(data) is bytes:
        return data
    if _is_memoryview(data):
        return data.tobytes()
    if _is_bytes(data):
        return bytes.__getitem__(data, slice(None))
    if type(data) is bytearray:
        return bytes(data)
    return bytes(bytearray.__getitem__(cast("bytearray", data), slice(None)))


def _decode(text: str | bytes, cap: int | None) -> bytes:
    length = len(text)
    if cap is not None and length > 4 * -(-cap // 3):
        raise SizeLimitError(cap)  # grew between the first look and the snapshot
    if length % 4:
        raise Base64Error(length)
    padding = (text[-1:] in ("=", b"=")) + (text[-2:] in ("==", b"=="))
    size = length // 4 * 3 - padding
    if cap is not None and size > cap:
        raise SizeLimitError(cap)
    raw: bytes | None
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # binascii.Error, or a str that is not ASCII
        raw = None
    if raw is None or len(raw) != size:  # strict_mode lets some surplus padding pass
        raise Base64Error(_first_offender(text, length - padding))
    if padding:
        last = length - padding - 1
        symbol = ord(text[last]) if isinstance(text, str) else text[last]
        if symbol not in _CANONICAL_LAST[padding]:
            raise Base64Error(last)
    return raw


def _first_offender(text: str | bytes, end: int) -> int:
    # Up to two `=` at the end are padding; everything before them must be of the alphabet.
    match = (
        _STR_OFFENDER.search(text, 0, end)
        if isinstance(text, str)
        else _BYTES_OFFENDER.search(text, 0, end)
    )
    return end if match is None else match.start()
