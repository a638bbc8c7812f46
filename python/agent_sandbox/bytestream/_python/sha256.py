"""A running SHA-256 (FIPS 180-4)."""

from __future__ import annotations

import hashlib
from typing import NoReturn, final

from agent_sandbox.bytestream._python.arguments import Octets, size_of, snapshot


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
        size_of(data, "data")
        self._hash.update(snapshot(data))

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
