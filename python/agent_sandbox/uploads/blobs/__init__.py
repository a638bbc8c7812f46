"""Where the bytes of sessions live. One protocol over a directory and over S3."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

READ_BYTES = 262_144
"""Largest chunk that a reader hands out."""


Parts = Sequence[bytes | memoryview]
"""Chunks, or one slab: a page-aligned view that is given back when the call returns."""


class BlobWriter(Protocol):
    """One object on its way. Exactly one of `commit` and `abort` ends it."""

    async def write(self, parts: Parts, also: Callable[[], None] | None = None) -> None:
        """Append some chunks. Not to be cancelled: a thread may work on the object meanwhile.

        Args:
            parts: In order. Not joined by the caller: a copy of every byte would cost as much
                as writing it.
            also: Work on the same chunks (their digest), to be done in the same trip to a
                thread, since the trip costs as much as a small write.

        Raises:
            UploadStorageFullError: E7017.
            UploadStorageError: E7018.
        """
        ...

    async def commit(self) -> None:
        """Publish the object under its key, durably, never over another one.

        Raises:
            UploadStorageFullError: E7017, nothing was published.
            UploadStorageError: E7018, nothing was published.
            UploadOutcomeUnknownError: E7011, it may have been.
        """
        ...

    async def abort(self) -> None:
        """Drop what was written. Raises nothing: what cannot be dropped now is an orphan."""
        ...


class BlobReader(Protocol):
    """A stored object's bytes, in chunks of at most `READ_BYTES`."""

    @property
    def size_bytes(self) -> int:
        """Size as the storage tells it."""
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the chunks in order; `UploadStorageError` where reading fails."""
        ...

    async def aclose(self) -> None:
        """Let go of the object."""
        ...


class BlobStore(Protocol):
    """Objects under server-made keys (`prefix/name`, lower-case hex and `/` only)."""

    async def begin(self, key: str, size_bytes: int) -> BlobWriter:
        """Start an object. `size_bytes` is a hint: the declared size."""
        ...

    async def open(self, key: str) -> BlobReader | None:
        """Open an object, None if there is none. UploadStorageError where that is unknown."""
        ...

    async def head(self, key: str) -> int | None:
        """Return an object's size, None if there is none. UploadStorageError as above."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object; a missing one is fine. UploadStorageError where that is unknown."""
        ...

    def list_orphans(self, older_than_s: float) -> AsyncIterator[str]:
        """Yield the keys of everything of ours at least that old, half-written things too.

        Whether a key is an orphan is for the caller to know: here no rows are known.
        """
        ...
