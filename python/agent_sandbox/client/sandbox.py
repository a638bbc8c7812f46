"""Sandboxes, async: one, and the client that makes and finds them."""

from __future__ import annotations

import builtins
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Self, TypedDict, TypeVar, Unpack

import anyio.to_thread

from agent_sandbox.client._calls import Operation
from agent_sandbox.client._drive_async import AsyncDriver, AsyncHttpClient
from agent_sandbox.client._http import async_client
from agent_sandbox.client._open import ClosedClientError, Slot, choose_provider
from agent_sandbox.client.commands import Commands
from agent_sandbox.client.files import Files
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
    http_client: AsyncHttpClient | None


class SandboxClient:
    """Settings and one connection pool for many sandboxes; belongs to one event loop.

    Use it with `async with`, or call `aclose`. Closing it ends no sandbox.

    Args:
        provider: `local`, `express`, `node`, or an object
            (`agent_sandbox.client.providers.Provider`); None: see
            `agent_sandbox.client.settings.Settings.resolve`.
        api_url: Base URL of the control plane.
        api_key: Its credential.
        sandbox_url: One base URL for every sandbox's data plane.
        http_client: Your own `httpx2.AsyncClient` or `httpx.AsyncClient`; it is never closed here
            and never used in a forked child, which needs a client of its own.
            httpx 0.28.1 loses pool slots when reads are cancelled; httpx2 does not.

    Raises:
        ConfigError: E6000: settings that contradict each other.
        TypeError: `http_client` is no async client of httpx or httpx2.
    """

    def __init__(
        self,
        *,
        provider: str | Provider | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        sandbox_url: str | None = None,
        http_client: AsyncHttpClient | None = None,
    ) -> None:
        self._provider = choose_provider(provider, api_url, api_key, sandbox_url, http_client)
        self._slot: Slot[AsyncHttpClient, AsyncDriver] = Slot(
            http_client, blocking=False, make=async_client, drive=_drive
        )

    @property
    def streaming(self) -> bool:
        """Whether files arrive while they are sent; else bounded reads are unsupported."""
        return self._provider.streaming

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection pool; safe to call twice."""
        for http in self._slot.close():
            await http.aclose()

    async def create(
        self,
        *,
        ttl_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
        deadline_s: float | None = 30,
    ) -> Sandbox:
        """Make a sandbox.

        Args:
            ttl_seconds: Life without renewal, 1 to 86,400; None is 300.
            metadata: Text to attach to it.
            deadline_s: Wall-clock seconds; None is 30.

        Raises:
            ArgumentError: E2001: `ttl_seconds` or `metadata` is out of its range.
            SandboxTimeoutError: E5004: time was over.
            SandboxUnavailableError: E5003: the service cannot be reached.
            AuthenticationError: E5005: it refused the credentials.
        """
        made = await self._run(sandboxes.create(ttl_seconds, metadata, deadline_s))
        return await self._sandbox(made, created=True)

    async def connect(
        self, sandbox_id: str, *, ttl_seconds: int | None = None, claim: bool = True
    ) -> Sandbox:
        """Find a sandbox, and let it live at least `ttl_seconds` (300) more; never shortens.

        Args:
            sandbox_id: Its handle.
            ttl_seconds: 1 to 86,400.
            claim: Whether a sandbox that was released is taken over: the end of its retained
                commands is then not its own end any more.

        Raises:
            SandboxNotFoundError: E5001: it never existed, has ended, or is not yours.
        """
        found = await self._run(sandboxes.connect(sandbox_id, ttl_seconds, claim=claim))
        return await self._sandbox(found, created=False)

    async def list(self) -> builtins.list[SandboxInfo]:
        """Return every sandbox that the credentials may see."""
        return await self._run(sandboxes.list_all())

    async def info(self, sandbox_id: str) -> SandboxInfo:
        """Return what is known about a sandbox; renews nothing.

        Raises:
            SandboxNotFoundError: E5001.
        """
        return await self._run(sandboxes.info(sandbox_id))

    async def set_ttl(self, sandbox_id: str, ttl_seconds: int) -> None:
        """Let a sandbox end `ttl_seconds` from now, earlier or later than before.

        Raises:
            ArgumentError: E2001: not 1 to 86,400.
            SandboxNotFoundError: E5001.
        """
        await self._run(sandboxes.set_ttl(sandbox_id, ttl_seconds))

    async def kill(self, sandbox_id: str) -> bool:
        """End a sandbox; returns False where it was gone."""
        return await self._run(sandboxes.kill(sandbox_id))

    async def release(self, sandbox_id: str) -> bool:
        """End a sandbox now or, where a retained command runs in it, at the end of that one.

        Returns False where it was gone. A service other than Express ends it now.
        """
        return await self._run(sandboxes.kill(sandbox_id, unless_retained=True))

    async def _run(self, operation: Operation[T]) -> T:
        driver, endpoint = await self._reach()
        return await driver.run(operation, endpoint.api)

    async def _reach(self) -> tuple[AsyncDriver, Endpoint]:
        if self._slot.closed:
            raise ClosedClientError
        endpoint = self._provider.ready()
        if endpoint is None:
            endpoint = await anyio.to_thread.run_sync(self._provider.open)
        return self._slot.driver(endpoint), endpoint

    async def _sandbox(self, found: e2b.Sandbox, *, created: bool) -> Sandbox:
        driver, endpoint = await self._reach()
        target = endpoint.data(found)
        files = Files(
            driver,
            target,
            streaming=self._provider.streaming,
            coding=endpoint.coding,
        )
        return Sandbox(self, found.sandbox_id, files, Commands(driver, target), created=created)


class Sandbox:
    """One sandbox; get it from `create` or `connect`.

    With `async with`, the end of the block kills a sandbox that this object created, and only
    closes the connections to one that it connected to, or in a forked child.

    Attributes:
        sandbox_id: Its handle.
        files: Its files.
        commands: Its commands.
    """

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
    async def create(
        cls,
        *,
        ttl_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
        deadline_s: float | None = 30,
        **settings: Unpack[ClientSettings],
    ) -> Sandbox:
        """Make a sandbox with a client of its own; see `SandboxClient` and its `create`."""
        client = SandboxClient(**settings)
        try:
            sandbox = await client.create(
                ttl_seconds=ttl_seconds, metadata=metadata, deadline_s=deadline_s
            )
        except BaseException:
            await client.aclose()
            raise
        sandbox._owns_client = True
        return sandbox

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        *,
        ttl_seconds: int | None = None,
        **settings: Unpack[ClientSettings],
    ) -> Sandbox:
        """Find a sandbox with a client of its own; see `SandboxClient` and its `connect`."""
        client = SandboxClient(**settings)
        try:
            sandbox = await client.connect(sandbox_id, ttl_seconds=ttl_seconds)
        except BaseException:
            await client.aclose()
            raise
        sandbox._owns_client = True
        return sandbox

    @classmethod
    async def list(
        cls,
        **settings: Unpack[ClientSettings],
    ) -> builtins.list[SandboxInfo]:
        """Return every sandbox that the credentials may see."""
        async with SandboxClient(**settings) as client:
            return await client.list()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._creator_pid == os.getpid():  # a forked child's copy created nothing
                with anyio.CancelScope(shield=True):  # a cancelled block ends its sandbox, too
                    await self.kill()
        except AgentSandboxError:
            if error is None:  # else what went wrong in the block is what the caller must see
                raise
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the sandbox lives on."""
        if self._owns_client:
            await self._client.aclose()

    async def info(self) -> SandboxInfo:
        """Return what is known about it; renews nothing."""
        return await self._client.info(self.sandbox_id)

    async def set_ttl(self, ttl_seconds: int) -> None:
        """Let it end `ttl_seconds` from now, earlier or later than before."""
        await self._client.set_ttl(self.sandbox_id, ttl_seconds)

    async def renew(self, ttl_seconds: int | None = None) -> None:
        """Let it live at least `ttl_seconds` (300) more; never shortens."""
        await self._client._run(sandboxes.connect(self.sandbox_id, ttl_seconds))

    async def kill(self) -> bool:
        """End it; returns False where it was gone."""
        return await self._client.kill(self.sandbox_id)


def _drive(http: AsyncHttpClient, own: bool) -> AsyncDriver:
    return AsyncDriver(http)
