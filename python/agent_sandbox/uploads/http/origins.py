"""Which web pages of other origins may use a transfer endpoint: the configured ones only."""

from __future__ import annotations

from starlette.types import Scope

from agent_sandbox.http1.head import Headers, values


def allow_origin(scope: Scope, origins: frozenset[str]) -> Headers:
    """Return the header lines that let a configured origin read the answer; else none.

    `Vary` is always there once origins are configured, so that no cache mixes the two answers.
    """
    if not origins:
        return []
    given = values(scope["headers"], b"origin")
    lines: Headers = [(b"vary", b"Origin")]
    if len(given) == 1 and given[0].decode("latin-1") in origins:
        lines += [
            (b"access-control-allow-origin", given[0]),
            (b"access-control-expose-headers", b"agent-sandbox-error, content-disposition"),
        ]
    return lines


def preflight(scope: Scope, origins: frozenset[str], method: bytes) -> Headers:
    """Return the header lines that answer an OPTIONS request; none for a foreign origin."""
    lines = allow_origin(scope, origins)
    if values(lines, b"access-control-allow-origin"):
        lines += [
            (b"access-control-allow-methods", method),
            (b"access-control-allow-headers", b"authorization, content-type"),
            (b"access-control-max-age", b"600"),
        ]
    return lines
