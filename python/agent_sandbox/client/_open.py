"""How a client gets its provider, its HTTP client and its driver; the same for both surfaces."""

from __future__ import annotations

import inspect
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from agent_sandbox.client._exchange import faults_of
from agent_sandbox.client.providers import Endpoint, Provider
from agent_sandbox.client.providers.express import ExpressProvider
from agent_sandbox.client.providers.local import LocalProvider
from agent_sandbox.client.providers.node import NodeProvider
from agent_sandbox.client.settings import Settings
from agent_sandbox.errors import ConfigError, SandboxUnavailableError

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
    if settings.provider == "local":
        if http_client is not None:
            raise ConfigError(reason="An http_client of your own cannot reach local sandboxes.")
        return LocalProvider()
    if settings.node_packages is not None:
        if http_client is not None:
            raise ConfigError(reason="An http_client of your own cannot reach through Node.")
        return NodeProvider(
            settings.node_packages,
            node=settings.node,
            api_url=settings.api_url,
            api_key=settings.api_key,
            sandbox_url=settings.sandbox_url,
        )
    if settings.api_url is None:
        raise ConfigError
    return ExpressProvider(
        settings.api_url, api_key=settings.api_key, sandbox_url=settings.sandbox_url
    )


class Slot(Generic[H, D]):
    """Holds the HTTP client of a sandbox client, made when it is first needed.

    A forked child gets a pool of its own: two processes must not talk on one connection. A
    caller's own client is refused there, as it may have connections of the parent.

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
        self._uds: str | None = None
        self._pid = os.getpid()
        self.closed = False
        _slots.add(self)

    def driver(self, endpoint: Endpoint) -> D:
        """Return the driver for an endpoint.

        Raises:
            SandboxUnavailableError: E5003: the caller's own client is that of a parent process.
        """
        with self._lock:
            if self.closed:
                raise ClosedClientError
            if self._foreign is not None:
                if os.getpid() != self._pid:
                    raise SandboxUnavailableError
                if self._driver is None:
                    self._driver = self._drive(self._foreign, False)
            elif self._driver is None or endpoint.uds != self._uds:
                http = self._make(endpoint.uds)
                self._made.append(http)
                self._driver = self._drive(http, True)
                self._uds = endpoint.uds
            return self._driver

    def close(self) -> list[H]:
        """Return the clients that are ours to close; nothing works afterwards."""
        with self._lock:
            self.closed = True
            made, self._made = self._made, []
            self._driver = None
            return made

    def forget(self) -> None:
        """In a forked child: give up the parent's connections without touching them."""
        self._lock = threading.Lock()  # the other one may be held by a thread that is not here
        _of_parents.extend(self._made)
        self._made.clear()
        self._driver = None


_slots: weakref.WeakSet[Slot[Any, Any]] = weakref.WeakSet()

_of_parents: list[object] = []
"""Clients of parent processes, kept: the end of one would complain, or reach its event loop."""


def _forget_all() -> None:
    for slot in tuple(_slots):
        slot.forget()


os.register_at_fork(after_in_child=_forget_all)
