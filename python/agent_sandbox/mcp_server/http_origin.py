"""Host and Origin: a page in a browser must not reach a server on its user's own machine."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from agent_sandbox.mcp_server.http_answers import refuse

LOOPBACK_HOSTS = ("127.0.0.1:*", "localhost:*", "[::1]:*")
LOOPBACK_ORIGINS = tuple(f"http://{host}" for host in LOOPBACK_HOSTS)


class OriginGuard:
    """Answers a Host that is not allowed with 421, an Origin with 403; neither is logged."""

    def __init__(
        self, app: ASGIApp, *, allowed_hosts: Sequence[str], allowed_origins: Sequence[str]
    ) -> None:
        self._app = app
        self._allowed_hosts = tuple(allowed_hosts)
        self._allowed_origins = tuple(allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        headers = Headers(scope=scope)
        app = self._app
        if not _one_allowed(headers.getlist("host"), self._allowed_hosts):
            app = refuse(421, "This server does not answer for this Host.")
        elif not _none_or_allowed(headers.getlist("origin"), self._allowed_origins):
            app = refuse(403, "This Origin is not allowed.")
        await app(scope, receive, send)


def _one_allowed(values: list[str], allowed: Sequence[str]) -> bool:
    return len(values) == 1 and _is_allowed(values[0], allowed)


def _none_or_allowed(values: list[str], allowed: Sequence[str]) -> bool:
    return not values or _one_allowed(values, allowed)


def _is_allowed(value: str, allowed: Sequence[str]) -> bool:
    value = value.lower()  # names of hosts and schemes have no case (RFC 3986 section 3.2.2)
    for pattern in map(str.lower, allowed):
        if pattern in ("*", value):
            return True
        name, separator, port = value.rpartition(":")
        if pattern.endswith(":*") and (
            value == pattern[:-2] or (separator and name == pattern[:-2] and port.isdecimal())
        ):
            return True
    return False
