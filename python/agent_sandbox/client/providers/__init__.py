"""What creates and finds sandboxes: the embedded service, any Express-compatible URL, adapters."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from agent_sandbox.client._calls import Target
from agent_sandbox.errors import SandboxUnavailableError
from agent_sandbox.wire import e2b, headers

_TOKEN = re.compile(r"[!-~]{1,4096}")
_DOMAIN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252})(:[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How to reach a service.

    Attributes:
        api: The control plane.
        sandbox_url: One base URL for every data plane; None: the answer's `domain` says it, and
            without one the service answers both planes at one place.
        uds: Unix socket that every request goes to, or None for the network.
        coding: What unbounded reads accept as Content-Encoding.
    """

    api: Target
    sandbox_url: str | None = None
    uds: str | None = None
    coding: str = field(default="gzip", kw_only=True)

    def data(self, sandbox: e2b.Sandbox) -> Target:
        """Return where the data plane of a sandbox is, with its credentials.

        Raises:
            SandboxUnavailableError: E5003: the service gave a token that no header can hold, or a
                domain that is none.
        """
        base = self.sandbox_url
        if base is None and sandbox.domain and self.api.base_url.startswith("https://"):
            if not _DOMAIN.fullmatch(sandbox.domain):
                raise SandboxUnavailableError
            base = f"https://{headers.ENVD_PORT}-{sandbox.sandbox_id}.{sandbox.domain}"
        routing = {
            headers.SANDBOX_ID: sandbox.sandbox_id,
            headers.SANDBOX_PORT: str(headers.ENVD_PORT),
        }
        token = sandbox.envd_access_token
        if token is not None:
            if not _TOKEN.fullmatch(token):
                raise SandboxUnavailableError
            routing[headers.ACCESS_TOKEN] = token
        return Target(base or self.api.base_url, routing)


class Provider(Protocol):
    """What a client needs of a provider.

    One that collects a whole file first (`streaming` is False) cannot keep a bound: bounded
    reads, streams and downloads are refused before any request.
    """

    @property
    def streaming(self) -> bool:
        """Whether bodies arrive while they are sent."""

    def ready(self) -> Endpoint | None:
        """Return the endpoint if that takes no waiting, else None. Thread-safe."""

    def open(self) -> Endpoint:
        """Return the endpoint, starting a service if need be; may wait. Thread-safe.

        Raises:
            SandboxUnavailableError: E5003: it cannot be started.
        """
