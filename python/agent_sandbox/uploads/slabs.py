"""Large buffers in which bodies arrive, are hashed and are written from, without another copy."""

from __future__ import annotations

import mmap

SLAB_BYTES = 4 << 20
"""Size of one slab: so long that the trips to threads do not count."""

RING_SLABS = 3
"""Slabs of one body: one is filled while the others are hashed and written."""

_MOST_RINGS = 2


class Slabs:
    """Rings of page-aligned slabs, each for one body at a time.

    One ring is kept for the next body: memory that is new to the process would cost a fifth of
    the time in page faults.
    """

    def __init__(self) -> None:
        self._in_use = 0
        self._spare: list[memoryview] | None = None

    def take(self) -> list[memoryview] | None:
        """Return a ring, or None while two are in use: more bodies share their cores anyway."""
        if self._in_use == _MOST_RINGS:
            return None
        self._in_use += 1
        ring, self._spare = self._spare, None
        return ring or [memoryview(mmap.mmap(-1, SLAB_BYTES)) for _ in range(RING_SLABS)]

    def give(self, ring: list[memoryview]) -> None:
        """Take a ring back; no thread works on any of its slabs any more."""
        self._in_use -= 1
        self._spare = ring
