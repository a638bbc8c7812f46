"""What a request's head says about the request itself: its target, its end, its sandbox."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import Scope

from agent_sandbox.errors import ArgumentError
from agent_sandbox.wire import headers

_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?#]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL)


def to_origin_form(scope: Scope) -> None:
    """Turn an absolute target into path and host, as RFC 9112 section 3.2.2 has it.

    Its authority then stands in for the `Host` header.
    """
    match = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if match is None:
        return
    scope["raw_path"] = match["path"] or b"/"
    scope["path"] = unquote(scope["raw_path"].decode("ascii"))
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [(b"host", match["authority"]), *others]


def is_framed_once(scope: Scope) -> bool:
    """Return whether the head says in one way where the body ends.

    Otherwise another server on the way may see other requests in the same bytes, and the
    connection must be closed (RFC 9112 section 6.1).
    """
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" not in names:
        return True
    return b"content-length" not in names and scope["http_version"] != "1.0"


class SandboxHosts:
    """Host names that stand for the ports of sandboxes: `{port}-{sandbox id}.{domain}`.

    Args:
        domain: Name under which every label is this service, a port behind it or not.
    """

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self._name = domain.partition(":")[0].lower()
        self._of_a_sandbox = re.compile(
            rf"(?P<port>[0-9]{{1,5}})-(?P<id>[a-z0-9]{{1,57}})\.{re.escape(self._name)}"
        )

    def holds(self, name: str) -> bool:
        """Return whether a host name, without its port, is the domain or lies under it."""
        return name == self._name or name.endswith(f".{self._name}")

    def route(self, scope: Scope) -> bool:
        """Put the sandbox of the `Host` header into the routing headers; False if it names none.

        Raises:
            ArgumentError: E2001: the routing headers name another one.
        """
        match = self._of_a_sandbox.fullmatch(host_name(scope))
        if match is None:
            return False
        lines = dict(scope["headers"])
        for header, group in ((headers.SANDBOX_ID, "id"), (headers.SANDBOX_PORT, "port")):
            name, value = header.encode(), match[group].encode()
            if lines.get(name, value) != value:
                raise ArgumentError
            if name not in lines:
                scope["headers"] = [*scope["headers"], (name, value)]
        return True


def host_name(scope: Scope) -> str:
    """Return the name in the `Host` header, without its port, in lower case."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    text = host.decode("latin-1").lower()
    name, _, port = text.rpartition(":")
    return (name if port.isdigit() else text).removesuffix(".")
