"""One connection: strict HTTP/1.1, with an end to everything that a peer can leave open."""

from __future__ import annotations

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
_DESCRIPTORS_SHARE = 0.75
_MOST_CONNECTIONS = 49_152


class Connection(StrictHTTPProtocol):
    """The strict protocol, with room for long paths, many connections, and bodies that are refused.

    A connection that is cut looks to the application like a peer that went away: receiving says
    `http.disconnect`, and sending returns.
    """

    header_deadline_s = HEAD_TIMEOUT_S
    linger_s = _REFUSED_BODY_S
    linger_max_bytes = _REFUSED_BODY_BYTES
    write_idle_s = STALL_TIMEOUT_S
    max_target_bytes = MAX_TARGET_BYTES
    stall_s = STALL_TIMEOUT_S
    most_connections = _MOST_CONNECTIONS
    descriptors_share = _DESCRIPTORS_SHARE

    def refusal(self, status: int, phrase: str, code: str) -> bytes:
        """Return the error as E2B's clients read it."""
        return ApiError(code=status, message=phrase).to_json()
