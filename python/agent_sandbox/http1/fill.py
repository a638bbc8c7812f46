"""The body of a request, put by the event loop straight into memory of the application's."""

from __future__ import annotations

import asyncio

from agent_sandbox.http1.cycle import Cycle

FILL = "agent_sandbox.fill"
"""Key of `scope["extensions"]` under which an application finds the `Filler` of its body.

There for requests with a `Content-Length`. Whoever fills does not `receive` at the same time.
"""


class Filler(asyncio.BufferedProtocol):
    """Reads a body with one copy, from the kernel into the buffer that the application brings.

    While a buffer is to be filled, this is the protocol of the connection, and hands on to the
    one whose place it takes what is not about bytes. Between two buffers nothing is read.

    Attributes:
        filled: Bytes in the buffer of the last `fill`, however it ended.
    """

    def __init__(self, protocol: asyncio.Protocol, transport: asyncio.Transport, cycle: Cycle):
        self._protocol = protocol
        self._transport = transport
        self._cycle = cycle
        self._loop = asyncio.get_running_loop()
        self._lost = False
        self.filled = 0

    async def fill(self, buffer: memoryview, *, idle_s: float, end: float) -> int:
        """Fill `buffer` with the body's next bytes and return how many there are.

        Fewer than asked for only where the body ends or breaks off: the count tells which.

        Args:
            buffer: Of single bytes. Nobody else touches it meanwhile.
            idle_s: Longest wait for any byte.
            end: When the buffer must be full, on the loop's clock.

        Raises:
            TimeoutError: One of the two passed.
        """
        self._view = buffer
        self.filled = self._cycle.take(buffer)
        self._want = min(len(buffer), self.filled + self._cycle.still_to_come)
        if self.filled == self._want:
            return self.filled
        self._idle_s, self._end = idle_s, end
        self._last = self._loop.time()
        self._over = self._loop.create_future()
        self._look()
        self._transport.set_protocol(self)
        self._transport.resume_reading()
        try:
            await self._over
        finally:
            self._timer.cancel()
            self._over.cancel()
            if not self._lost:
                self._transport.pause_reading()
                self._transport.set_protocol(self._protocol)
        return self.filled

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the room that is left."""
        return self._view[self.filled : self._want]

    def buffer_updated(self, nbytes: int) -> None:
        """Count what came."""
        self._cycle.took(nbytes)
        self.filled += nbytes
        self._last = self._loop.time()
        if self.filled == self._want:
            self._transport.pause_reading()
            self._ended()

    def eof_received(self) -> bool | None:
        """Hand on; no more can come."""
        self._ended()
        return self._protocol.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on; no more can come."""
        self._lost = True
        self._ended()
        self._protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        """Hand on."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """Hand on."""
        self._protocol.resume_writing()

    def _ended(self) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def _look(self) -> None:
        due = min(self._end, self._last + self._idle_s)
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._look)
        elif not self._over.done():
            self._over.set_exception(TimeoutError())
