"""What a request's head says about its sandbox."""

from __future__ import annotations

import re

from starlette.types import Scope

from agent_sandbox.errors import ArgumentError
from agent_sandbox.wire import headers


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
