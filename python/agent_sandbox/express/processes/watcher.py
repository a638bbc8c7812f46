"""One reader of a command's output, with a bound on what waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agent_sandbox.output import Output, OutputBuffer
from agent_sandbox.wire.process import Stream

MAX_WAITING_BYTES = 1_048_576
"""Output that may wait for one reader; beyond it the command itself is made to wait."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Output of one stream.

    Attributes:
        omitted_bytes: Left out right before `data`.
    """

    stream: Stream
    data: bytes
    omitted_bytes: int = 0


def chunks_of(stream: Stream, output: Output) -> list[Chunk]:
    """Return what a buffer holds as chunks."""
    chunks = [Chunk(stream, output.head)] if output.head else []
    if output.omitted_bytes or output.tail:
        chunks.append(Chunk(stream, output.tail, output.omitted_bytes))
    return chunks


class Watcher:
    """A queue of output between a command and one caller.

    Args:
        on_room: Called when a full queue has room again.
        limit_bytes: Instead of a queue keep the first and the last part of each stream, together
            at most so many bytes, and hand them out at the end. Such a watcher is never full.
    """

    def __init__(self, on_room: Callable[[], None], *, limit_bytes: int | None = None) -> None:
        self._on_room = on_room
        self._limit_bytes = limit_bytes
        self._buffers: dict[Stream, OutputBuffer] = {}
        self._queue: deque[Chunk] = deque()
        self._waiting_bytes = 0
        self._news = asyncio.Event()
        self.ended = False
        self.dropped = False

    @property
    def full(self) -> bool:
        """Whether the command must wait for this reader."""
        return self._waiting_bytes >= MAX_WAITING_BYTES

    def push(self, chunk: Chunk) -> None:
        """Take output."""
        if self._limit_bytes is not None:
            buffer = self._buffers.setdefault(chunk.stream, OutputBuffer(self._limit_bytes))
            buffer.skip(chunk.omitted_bytes)
            buffer.append(chunk.data)
            return
        self._queue.append(chunk)
        self._waiting_bytes += len(chunk.data)
        self._news.set()

    def end(self) -> None:
        """Say that no output will follow."""
        self._collect()
        self.ended = True
        self._news.set()

    def drop(self) -> None:
        """Let go of a reader that is too slow; what waited for it is given up."""
        self.dropped = True
        self._queue.clear()
        self._waiting_bytes = 0
        self._news.set()

    def _collect(self) -> None:
        for stream, buffer in self._buffers.items():
            self._queue.extend(chunks_of(stream, buffer.output()))
        self._buffers.clear()

    async def next(self) -> Chunk | None:
        """Return the next output, or None at the end and for a reader that was let go."""
        while not self._queue:
            if self.ended or self.dropped:
                return None
            self._news.clear()
            await self._news.wait()
        was_full = self.full
        chunk = self._queue.popleft()
        self._waiting_bytes -= len(chunk.data)
        if was_full and not self.full:
            self._on_room()
        return chunk
