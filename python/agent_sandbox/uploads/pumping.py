"""The way of a body: counted, hashed and written, while the next part of it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import aclosing
from itertools import cycle
from typing import Protocol, runtime_checkable

from agent_sandbox.errors import UploadBodyError, UploadSizeError
from agent_sandbox.uploads.blobs import BlobWriter, Parts
from agent_sandbox.uploads.core import Active, Core
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.lanes import Lanes
from agent_sandbox.uploads.models import UploadSession

GATHERED_BYTES = 24 << 20
"""What all bodies together may have gathered: few get large batches, many get small ones."""

_BATCH_BYTES = (64 << 10, 1 << 20)
"""Smallest and largest batch of one body."""

_SLABS_FROM_BYTES = 8 << 20
"""From this size on a body fills slabs, if its server can put bytes there."""


@runtime_checkable
class FillingBody(Protocol):
    """A body whose server may be able to put the bytes where they are wanted."""

    @property
    def fills(self) -> bool:
        """Whether it can."""
        ...

    @property
    def filled(self) -> int:
        """Bytes that the last `fill` got, however it ended."""
        ...

    async def fill(self, buffer: memoryview) -> None:
        """Fill all of `buffer`; what keeps it from that raises."""
        ...


async def pump(
    core: Core,
    session: UploadSession,
    writer: BlobWriter,
    body: AsyncIterable[bytes],
    *,
    hashed: bool,
) -> tuple[int, str]:
    """Store a body and return its size and its digest in hex.

    Raises:
        UploadBodyError: E7015, an upload longer than declared.
        UploadSizeError: E7014, a download longer than allowed.
        AgentSandboxError: What `body` and `writer` raise.
    """
    batches = _Batches(session)
    large = session.size_bytes >= _SLABS_FROM_BYTES
    filling = body if large and isinstance(body, FillingBody) and body.fills else None
    ring = core.slabs.take() if filling is not None else None
    lanes = Lanes(writer, hashed=hashed, slabs=len(ring or ()))
    try:
        with core.receiving.entered() as active:
            if filling is not None and ring is not None:
                parts = batches.filled(filling, ring)
            else:
                parts = batches.gathered(body, active)
            async with aclosing(parts):
                async for batch in parts:
                    await lanes.put(batch)
            return batches.count, await lanes.finish()
    finally:
        core.audit.moved("in", batches.count)
        # A thread cannot be stopped; the file must not be dropped under its hands.
        try:
            await to_its_end(lanes.settled())
        finally:  # cancelled a second time, it has settled all the same
            if ring is not None:
                core.slabs.give(ring)


class _Batches:
    """A body in pieces that are worth a trip to a thread.

    Attributes:
        count: Bytes that came so far.
    """

    def __init__(self, session: UploadSession) -> None:
        self._session = session
        self.count = 0

    async def gathered(
        self, body: AsyncIterable[bytes], active: Active
    ) -> AsyncGenerator[Parts, None]:
        """Yield the chunks that arrive, several at a time."""
        batch: list[bytes] = []
        gathered = 0
        async for chunk in body:
            self.count += len(chunk)
            if self.count > self._session.size_bytes:
                if self._session.kind == "download":
                    raise UploadSizeError(self._session.size_bytes)
                raise UploadBodyError
            batch.append(bytes(chunk))
            gathered += len(chunk)
            least, most = _BATCH_BYTES
            if gathered >= min(most, max(least, GATHERED_BYTES // (2 * active.count))):
                yield batch
                batch, gathered = [], 0
        if batch:
            yield batch

    async def filled(
        self, body: FillingBody, ring: list[memoryview]
    ) -> AsyncGenerator[Parts, None]:
        """Yield slab after slab, by turns."""
        left = self._session.size_bytes
        for slab in cycle(ring):
            part = slab[:left]
            try:
                await body.fill(part)
            finally:
                self.count += body.filled
            yield [part]
            left -= len(part)
            if not left:
                return
