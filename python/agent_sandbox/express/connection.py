"""One connection: uvicorn's HTTP/1.1, with an end to everything that a peer can leave open."""

from __future__ import annotations

import asyncio
import resource
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

STALL_TIMEOUT_S = 120.0
"""A peer that takes or sends nothing for so long while it should is given up."""

HEAD_TIMEOUT_S = 20.0
"""From the accept of a connection to the end of its first request's head."""

IDLE_TIMEOUT_S = 75.0
"""How long a connection is kept for the next request."""

_PROGRESS_BYTES = 65_536
_CONNECTIONS_OF_DESCRIPTORS = 0.75


def most_connections() -> int:
    """Return how many connections are kept; the other descriptors are for what they ask for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(soft * _CONNECTIONS_OF_DESCRIPTORS)


class Connection(H11Protocol):
    """uvicorn's protocol, which by itself waits for ever for a head, and for a peer that reads.

    A connection that is cut looks to the application like a peer that went away: receiving says
    `http.disconnect`, and sending returns.
    """

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or cut it where there are too many."""
        super().connection_made(cast("asyncio.Transport", transport))
        if len(self.connections) > most_connections():
            self.transport.abort()
        else:
            self._await_head(HEAD_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        super().connection_lost(exc)
        for timer in (self._head_timer, self._stall_timer):
            if timer:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        """Take bytes; a complete head ends the wait for it."""
        super().data_received(data)
        if self._head_timer and self.cycle and not self.cycle.response_complete:
            self._head_timer.cancel()
            self._head_timer = None

    def on_response_complete(self) -> None:
        """Wait for the next head, but also for the rest of a body that nobody wanted."""
        super().on_response_complete()
        if self.cycle.response_complete:  # otherwise the next request was waiting already
            self._await_head(IDLE_TIMEOUT_S + HEAD_TIMEOUT_S)

    def _await_head(self, seconds: float) -> None:
        if self._head_timer:
            self._head_timer.cancel()
        self._head_timer = self.loop.call_later(seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self._stall_timer:  # the peer still takes the answer; that has its own measure
            self._await_head(IDLE_TIMEOUT_S)
        else:
            self.transport.abort()

    def pause_writing(self) -> None:
        """Begin to measure what the peer takes."""
        super().pause_writing()
        self._measure()

    def resume_writing(self) -> None:
        """Stop measuring: the peer has taken nearly all."""
        super().resume_writing()
        if self._stall_timer:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._head_timer:  # the rest of the answer has its time as well
            self._await_head(IDLE_TIMEOUT_S)

    def _measure(self) -> None:
        self._unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(STALL_TIMEOUT_S, self._is_stalled)

    def _is_stalled(self) -> None:
        if self._unsent_bytes - self.transport.get_write_buffer_size() < _PROGRESS_BYTES:
            self.transport.abort()
        else:
            self._measure()
