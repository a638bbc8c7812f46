"""Appending to a file: all of it, in the way that costs least."""

from __future__ import annotations

import errno
import fcntl
import os

from agent_sandbox.uploads.blobs import Parts

_MOST_PARTS = 512
"""Fewer than IOV_MAX (1,024)."""

_FLUSH_BYTES = 8 << 20
"""How much may be dirty before the disk is set to work."""

_DIRECT: int = getattr(os, "O_DIRECT", 0)
_BLOCK_BYTES = 4_096
"""What direct writes are multiples of."""


class Appender:
    """Writes to the end of a file, and sets the disk to work before it is asked to sync.

    A slab goes past the page cache (open(2), O_DIRECT): no copy, and the disk works at once. Where
    the file system does not do so, or for a rest that is no whole block, it goes the usual way.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._size = self._advised = 0
        self._direct = False
        self._may_be_direct = True

    def write(self, parts: Parts) -> None:
        """Append some chunks, or one slab. OSError as the kernel says it."""
        self._size += sum(map(len, parts))
        slabs = all(isinstance(part, memoryview) for part in parts)
        left = [memoryview(part) for part in parts if part]
        while left:  # a short write is no error; the next one tells what is wrong
            count = self._write_some(left[:_MOST_PARTS], direct=slabs and self._may_be_direct)
            while left and count >= len(left[0]):
                count -= len(left.pop(0))
            if count:
                left[0] = left[0][count:]
        if self._size - self._advised >= _FLUSH_BYTES and not self._direct:
            # Starts the disk on what is dirty, so that little is left for the fsync.
            start, self._advised = self._advised, self._size
            os.posix_fadvise(self._descriptor, start, self._size - start, os.POSIX_FADV_DONTNEED)

    def _write_some(self, parts: list[memoryview], *, direct: bool) -> int:
        direct = direct and not any(len(part) % _BLOCK_BYTES for part in parts)
        try:
            self._switch(direct)
            return os.writev(self._descriptor, parts)
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
        self._may_be_direct = False
        return self._write_some(parts, direct=False)

    def _switch(self, direct: bool) -> None:
        if direct != self._direct:
            flags = fcntl.fcntl(self._descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self._descriptor, fcntl.F_SETFL, flags ^ _DIRECT)
            self._direct = direct
