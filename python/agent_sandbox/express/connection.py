"""One connection: strict HTTP/1.1, with an end to everything that a peer can leave open."""

from __future__ import annotations

import asyncio
import resource

from agent_sandbox.http1 import StrictHTTPProtocol
from agent_sandbox.wire.e2b import ApiError

STALL_TIMEOUT_S = 120.0
"""A peer that takes or sends nothing for so long while it should is given up."""

HEAD_TIMEOUT_S = 20.0
"""From the accept of a connection, or the first byte of a further request, to its head's end."""

IDLE_TIMEOUT_S = 75.0
"""How long a connection is kept for the next request."""

MAX_TARGET_BYTES = 65_536
"""Longest request target: a path takes up to three bytes for each of its own."""

_REFUSED_BODY_S = 60.0
"""How long the rest of a body that nobody wants is read: whoever sends it hears the answer."""

_REFUSED_BODY_BYTES = 2**40
_PROGRESS_BYTES = 65_536
_CONNECTIONS_OF_DESCRIPTORS = 0.75


def most_connections() -> int:
    """Return how many connections are kept; the other descriptors are for what they ask for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(soft * _CONNECTIONS_OF_DESCRIPTORS)


class Connection(StrictHTTPProtocol):
    """The strict protocol, which by itself waits for ever for a peer that reads.

    A connection that is cut looks to the application like a peer that went away: receiving says
    `http.disconnect`, and sending returns.
    """

    header_deadline_s = HEAD_TIMEOUT_S
    linger_s = _REFUSED_BODY_S
    linger_max_bytes = _REFUSED_BODY_BYTES
    write_idle_s = STALL_TIMEOUT_S
    max_target_bytes = MAX_TARGET_BYTES
    stall_s = STALL_TIMEOUT_S

    _stall_timer: asyncio.TimerHandle | None = None
    _stall_unsent_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or cut it where there are too many."""
        super().connection_made(transport)
        if len(self.server_state.connections) > most_connections():
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        super().connection_lost(exc)
        self._stop_measuring()

    def refusal(self, status: int, phrase: str, code: str) -> bytes:
        """Return the error as E2B's clients read it."""
        return ApiError(code=status, message=phrase).to_json()

    def pause_writing(self) -> None:
        """Begin to measure what the peer takes."""
        super().pause_writing()
        self._measure()

    def resume_writing(self) -> None:
        """Stop measuring: the peer has taken nearly all."""
        super().resume_writing()
        self._stop_measuring()

    def _measure(self) -> None:
        self._stall_unsent_bytes = self.transport.get_write_buffer_size()
        self._stall_timer = self.loop.call_later(self.stall_s, self._is_stalled)

    def _stop_measuring(self) -> None:
        if self._stall_timer:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _is_stalled(self) -> None:
        taken = self._stall_unsent_bytes - self.transport.get_write_buffer_size()
        if taken < _PROGRESS_BYTES:
            self.transport.abort()
        else:
            self._measure()
