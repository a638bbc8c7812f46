"""A peer that does not take what it asked for."""

from __future__ import annotations

import asyncio

PROGRESS_BYTES = 65_536
"""What a peer must take in each period."""


class Stall:
    """Cuts a connection whose peer takes next to nothing of an answer.

    Cut, it looks to the application like a peer that went away.

    Args:
        transport: The connection.
        loop: Its loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._unsent = 0

    def begin(self, period_s: float) -> None:
        """Begin to measure: the transport holds more than it should."""
        self._unsent = self._transport.get_write_buffer_size()
        self._timer = self._loop.call_later(period_s, self._look, period_s)

    def end(self) -> None:
        """Stop measuring: the peer has taken nearly all, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self, period_s: float) -> None:
        taken = self._unsent - self._transport.get_write_buffer_size()
        if taken < PROGRESS_BYTES:
            self._transport.abort()
        else:
            self.begin(period_s)
