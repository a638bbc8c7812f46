"""The provider for any Express-compatible service, our own or another."""

from __future__ import annotations

from agent_sandbox.client._calls import Target
from agent_sandbox.client.providers import Endpoint
from agent_sandbox.wire import headers


class ExpressProvider:
    """Reaches a service at a URL.

    Args:
        api_url: Base URL of the control plane.
        api_key: Credential of the control plane, or None.
        sandbox_url: One base URL for every sandbox's data plane, or None.
    """

    streaming = True

    def __init__(
        self, api_url: str, *, api_key: str | None = None, sandbox_url: str | None = None
    ) -> None:
        credentials = {} if api_key is None else {headers.API_KEY: api_key}
        self._endpoint = Endpoint(Target(api_url, credentials), sandbox_url)

    def ready(self) -> Endpoint:
        """Return the endpoint."""
        return self._endpoint

    def open(self) -> Endpoint:
        """Return the endpoint; whether somebody listens there shows with the first call."""
        return self._endpoint
