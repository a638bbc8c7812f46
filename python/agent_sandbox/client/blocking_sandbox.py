"""Sandboxes, blocking: the twin of `agent_sandbox.client.sandbox`."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack

from agent_sandbox.client._calls import Operation
from agent_sandbox.client._drive_blocking import BlockingDriver, BlockingHttpClient
from agent_sandbox.client._http import blocking_client
from agent_sandbox.client._open import ClosedClientError, Slot, choose_provider
from agent_sandbox.client.blocking_commands import Commands
from agent_sandbox.client.blocking_files import Files
from agent_sandbox.client.operations import sandboxes
from agent_sandbox.client.providers import Endpoint, Provider
from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.models import SandboxInfo
from agent_sandbox.wire import e2b

T = TypeVar("T")


class ClientSettings(TypedDict, total=False):
    """The keyword arguments of `SandboxClient`, for the shorthands of `Sandbox`."""

    provider: str | Provider | None
    api_url: str | None
    api_key: str | None
    sandbox_url: str | None
    http_client: BlockingHttpClient | None


class SandboxClient:
    """Settings and one connection pool for many sandboxes, blocking; safe for any threads.

    Use it with `with`, or call `close`. An `http_client` is an `httpx2.Client` or an
    `httpx.Client`; calls with a deadline then run in a thread of their own, iterators that are
    written too, and a peer that never ends its head keeps its connection until the client's own
    timeout. All else as in `agent_sandbox.client.sandbox.SandboxClient`.
    """

    def __init__(
        self,
        *,
        provider: str | Provider | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        sandbox_url: str | None = None,
        http_client: BlockingHttpClient | None = None,
    ) -> None:
        self._provider = choose_provider(provider, api_url, api_key, sandbox_url, http_client)
        self._slot: Slot[BlockingHttpClient, BlockingDriver] = Slot(
            http_client, blocking=True, make=blocking_client, drive=_drive
        )

    @property
    def streaming(self) -> bool:
        """Blocking twin of `SandboxClient.streaming`."""
        return self._provider.streaming

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Blocking twin of `SandboxClient.close`."""
        for http in self._slot.close():
            http.close()

    def create(
        self,
        *,
        ttl_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
        deadline_s: float | None = 30,
    ) -> Sandbox:
        """Blocking twin of `SandboxClient.create`."""
        made = self._run(sandboxes.create(ttl_seconds, metadata, deadline_s))
        return self._sandbox(made, created=True)

    def connect(
        self, sandbox_id: str, *, ttl_seconds: int | None = None, claim: bool = True
    ) -> Sandbox:
        """Blocking twin of `SandboxClient.connect`."""
        found = self._run(sandboxes.connect(sandbox_id, ttl_seconds, claim=claim))
        return self._sandbox(found, created=False)

    def list(self) -> builtins.list[SandboxInfo]:
        """Blocking twin of `SandboxClient.list`."""
        return self._run(sandboxes.list_all())

    def info(self, sandbox_id: str) -> SandboxInfo:
        """Blocking twin of `SandboxClient.info`."""
        return self._run(sandboxes.info(sandbox_id))

    def set_ttl(self, sandbox_id: str, ttl_seconds: int) -> None:
        """Blocking twin of `SandboxClient.set_ttl`."""
        self._run(sandboxes.set_ttl(sandbox_id, ttl_seconds))

    def kill(self, sandbox_id: str) -> bool:
        """Blocking twin of `SandboxClient.kill`."""
        return self._run(sandboxes.kill(sandbox_id))

    def release(self, sandbox_id: str) -> bool:
        """Blocking twin of `SandboxClient.release`."""
        return self._run(sandboxes.kill(sandbox_id, unless_retained=True))

    def _run(self, operation: Operation[T]) -> T:
        driver, endpoint = self._reach()
        return driver.run(operation, endpoint.api)

    def _reach(self) -> tuple[BlockingDriver, Endpoint]:
        if self._slot.closed:
            raise ClosedClientError
        endpoint = self._provider.ready()
        if endpoint is None:
            endpoint = self._provider.open()
        return self._slot.driver(endpoint), endpoint

    def _sandbox(self, found: e2b.Sandbox, *, created: bool) -> Sandbox:
        driver, endpoint = self._reach()
        target = endpoint.data(found)
        files = Files(
            driver,
            target,
            streaming=self._provider.streaming,
            coding=endpoint.coding,
        )
        return Sandbox(self, found.sandbox_id, files, Commands(driver, target), created=created)


class Sandbox:
    """One sandbox, blocking; all as in `agent_sandbox.client.sandbox.Sandbox`."""

    def __init__(
        self,
        client: SandboxClient,
        sandbox_id: str,
        files: Files,
        commands: Commands,
        *,
        created: bool,
    ) -> None:
        self.sandbox_id = sandbox_id
        self.files = files
        self.commands = commands
        self._client = client
        self._creator_pid = os.getpid() if created else None
        self._owns_client = False

    def __repr__(self) -> str:
        return f"<Sandbox {self.sandbox_id}>"

    @classmethod
    def create(
        cls,
        *,
        ttl_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
        deadline_s: float | None = 30,
        **settings: Unpack[ClientSettings],
    ) -> Sandbox:
        """Blocking twin of `Sandbox.create`."""
        client = SandboxClient(**settings)
        try:
            sandbox = client.create(
                ttl_seconds=ttl_seconds, metadata=metadata, deadline_s=deadline_s
            )
        except BaseException:
            client.close()
            raise
        sandbox._owns_client = True
        return sandbox

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        ttl_seconds: int | None = None,
        **settings: Unpack[ClientSettings],
    ) -> Sandbox:
        """Blocking twin of `Sandbox.connect`."""
        client = SandboxClient(**settings)
        try:
            sandbox = client.connect(sandbox_id, ttl_seconds=ttl_seconds)
        except BaseException:
            client.close()
            raise
        sandbox._owns_client = True
        return sandbox

    @classmethod
    def list(
        cls,
        **settings: Unpack[ClientSettings],
    ) -> builtins.list[SandboxInfo]:
        """Blocking twin of `Sandbox.list`."""
        with SandboxClient(**settings) as client:
            return client.list()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._creator_pid == os.getpid():  # a forked child's copy created nothing
                self.kill()
        except AgentSandboxError:
            if error is None:  # else what went wrong in the block is what the caller must see
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Blocking twin of `Sandbox.close`."""
        if self._owns_client:
            self._client.close()

    def info(self) -> SandboxInfo:
        """Blocking twin of `Sandbox.info`."""
        return self._client.info(self.sandbox_id)

    def set_ttl(self, ttl_seconds: int) -> None:
        """Blocking twin of `Sandbox.set_ttl`."""
        self._client.set_ttl(self.sandbox_id, ttl_seconds)

    def renew(self, ttl_seconds: int | None = None) -> None:
        """Blocking twin of `Sandbox.renew`."""
        self._client._run(sandboxes.connect(self.sandbox_id, ttl_seconds))

    def kill(self) -> bool:
        """Blocking twin of `Sandbox.kill`."""
        return self._client.kill(self.sandbox_id)


def _drive(http: BlockingHttpClient, own: bool) -> BlockingDriver:
    return BlockingDriver(http, exact=own)
