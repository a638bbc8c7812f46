"""How a client gets its provider, its HTTP client and its driver; the same for both surfaces."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from agent_sandbox.client._exchange import faults_of
from agent_sandbox.client.providers import Endpoint, Provider
from agent_sandbox.client.providers.express import ExpressProvider
from agent_sandbox.client.providers.local import LocalProvider
from agent_sandbox.client.settings import Settings
from agent_sandbox.errors import ConfigError

H = TypeVar("H")
D = TypeVar("D")


class ClosedClientError(RuntimeError):
    """A client was used after it was closed: a fault of the program, not of the sandbox."""

    def __init__(self) -> None:
        super().__init__("the client is closed")


def choose_provider(
    provider: str | Provider | None,
    api_url: str | None,
    api_key: str | None,
    sandbox_url: str | None,
    http_client: object,
) -> Provider:
    """Return the provider that the arguments and the environment name.

    Raises:
        ConfigError: E6000, with a `reason`.
    """
    if provider is not None and not isinstance(provider, str):
        if any(value is not None for value in (api_url, api_key, sandbox_url)):
            raise ConfigError(reason="A provider object brings its own URLs and key.")
        return provider
    settings = Settings.resolve(
        provider=provider, api_url=api_url, api_key=api_key, sandbox_url=sandbox_url
    )
    if settings.api_url is None:
        if http_client is not None:
            raise ConfigError(reason="An http_client of your own cannot reach local sandboxes.")
        return LocalProvider()
    return ExpressProvider(
        settings.api_url, api_key=settings.api_key, sandbox_url=settings.sandbox_url
    )


class Slot(Generic[H, D]):
    """Holds the HTTP client of a sandbox client, made when it is first needed.

    A forked child gets a pool of its own: two processes must not talk on one connection.

    Args:
        http: The caller's own client, or None.
        blocking: Which kind of client is wanted.
        make: Makes a client of ours for a unix socket or the network.
        drive: Makes the driver; told whether the client is ours.
    """

    def __init__(
        self,
        http: H | None,
        *,
        blocking: bool,
        make: Callable[[str | None], H],
        drive: Callable[[H, bool], D],
    ) -> None:
        if http is not None:
            faults_of(http)
            send = getattr(http, "send", None)
            if inspect.iscoroutinefunction(send) is blocking:
                raise TypeError("http_client is of the wrong kind: one is async, one is blocking")
        self._foreign = http
        self._make, self._drive = make, drive
        self._lock = threading.Lock()
        self._made: list[H] = []
        self._driver: D | None = None
        self._key: tuple[int, str | None] | None = None
        self.closed = False

    def driver(self, endpoint: Endpoint) -> D:
        """Return the driver for an endpoint."""
        key = os.getpid(), endpoint.uds
        with self._lock:
            if self.closed:
                raise ClosedClientError
            if self._driver is None or key != self._key:
                if self._foreign is not None:
                    self._driver = self._drive(self._foreign, False)
                else:
                    if self._key is None or self._key[0] != key[0]:
                        self._made.clear()  # a parent's connections are the parent's to close
                    http = self._make(endpoint.uds)
                    self._made.append(http)
                    self._driver = self._drive(http, True)
                self._key = key
            return self._driver

    def close(self) -> list[H]:
        """Return the clients that are ours to close; nothing works afterwards."""
        with self._lock:
            self.closed = True
            made, self._made = self._made, []
            self._driver = None
            return made if self._key is not None and self._key[0] == os.getpid() else []
