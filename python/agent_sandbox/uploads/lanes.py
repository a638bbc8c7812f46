"""Batches of a body on their way to the digest and to the storage, each in a thread."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable

from anyio.to_thread import run_sync

from agent_sandbox.bytestream import Sha256
from agent_sandbox.uploads.blobs import BlobWriter, Parts

_APART_BYTES = 512 << 10
"""From this size on a batch is hashed in one thread and written in another. Smaller ones come
where many bodies share the cores, and there a second trip to a thread only costs."""


class Lanes:
    """Hashes batches one after the other, and writes them one after the other.

    Args:
        writer: Of the object.
        hashed: Whether there is a digest.
        slabs: How many slabs the batches lie in by turns. A slab must come to rest before it is
            put again: then the others may still be on their way. With 0 a batch owns its bytes,
            and one is on its way while the next is gathered.
    """

    def __init__(self, writer: BlobWriter, *, hashed: bool, slabs: int = 0) -> None:
        self._writer = writer
        self._hashed = hashed
        # Sha256 copies what may change under it. A slab does not while it is here.
        self._digest = hashlib.sha256() if slabs else Sha256()
        self._depth = max(1, slabs - 1)
        self._under_way: deque[asyncio.Task[None]] = deque()
        self._hashing = asyncio.Lock()  # first come, first served
        self._writing = asyncio.Lock()

    async def put(self, parts: Parts) -> None:
        """Start a batch once there is room; raises what an earlier one failed with."""
        while len(self._under_way) >= self._depth:
            await self._first()
        self._under_way.append(asyncio.create_task(self._store(parts)))

    async def finish(self) -> str:
        """Wait for all, and return the digest in hex; raises what one failed with."""
        while self._under_way:
            await self._first()
        return self._digest.hexdigest()

    async def settled(self) -> None:
        """Wait until no thread works for a batch any more; raises nothing."""
        if self._under_way:
            await asyncio.wait(self._under_way)
        for task in self._under_way:
            if not task.cancelled():
                task.exception()  # looked at: the first error is the one that is raised

    async def _first(self) -> None:
        await asyncio.wait([self._under_way[0]])  # unlike await, cancels nothing
        self._under_way.popleft().result()

    async def _store(self, parts: Parts) -> None:
        if not self._hashed:
            await self._write(parts)
        elif self._depth == 1 and sum(map(len, parts)) < _APART_BYTES:
            await self._write(parts, lambda: self._update(parts))
        else:
            apart = asyncio.create_task(self._hash(parts))
            try:
                await self._write(parts)
            finally:
                await asyncio.wait([apart])
            apart.result()

    async def _write(self, parts: Parts, also: Callable[[], None] | None = None) -> None:
        async with self._writing:
            await self._writer.write(parts, also)

    async def _hash(self, parts: Parts) -> None:
        async with self._hashing:
            await run_sync(self._update, parts)

    def _update(self, parts: Parts) -> None:
        for part in parts:
            self._digest.update(part)
