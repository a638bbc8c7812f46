"""Races between making, finding, using and ending a sandbox, in an order that the test chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from agent_sandbox import Sandbox, SandboxClient
from agent_sandbox.errors import (
    AgentSandboxError,
    SandboxNotFoundError,
    SandboxOwnedError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    TransferError,
)
from agent_sandbox.mcp_server import ownership
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.ownership import Registry, Use
from agent_sandbox.mcp_server.principals import ANONYMOUS

WAIT_S = 10


class Service:
    """A sandbox service whose answers wait for the test."""

    def __init__(self) -> None:
        self.alive: set[str] = set()
        self.connected: list[str] = []
        self.deadlines: list[float] = []
        self.asked = anyio.Event()
        self.open = anyio.Event()
        self.open.set()
        self.before_answer: Callable[[], object] = bool

    async def _answer(self) -> None:
        self.asked.set()
        await self.open.wait()
        self.before_answer()

    async def create(self, *, deadline_s: float, **_: Any) -> Sandbox:
        self.deadlines.append(deadline_s)
        await self._answer()
        sandbox_id = f"made{len(self.deadlines)}"
        self.alive.add(sandbox_id)
        return self._sandbox(sandbox_id)

    async def connect(self, sandbox_id: str, **_: Any) -> Sandbox:
        self.connected.append(sandbox_id)
        await self._answer()
        return self._sandbox(sandbox_id)

    async def info(self, sandbox_id: str) -> Any:
        if sandbox_id not in self.alive:
            raise SandboxNotFoundError
        return SimpleNamespace(metadata={})

    async def release(self, sandbox_id: str) -> bool:
        self.alive.discard(sandbox_id)
        return True

    def _sandbox(self, sandbox_id: str) -> Sandbox:
        async def renew(_ttl_seconds: int) -> None:
            pass

        return cast("Sandbox", cast("Any", SimpleNamespace(sandbox_id=sandbox_id, renew=renew)))


@asynccontextmanager
async def registered(resolve_timeout_s: float = 30) -> AsyncIterator[tuple[Service, Registry]]:
    service = Service()
    config = McpConfig(resolve_timeout_s=resolve_timeout_s)
    async with anyio.create_task_group() as tasks:
        yield service, Registry(cast("SandboxClient", cast("Any", service)), config, tasks)
        tasks.cancel_scope.cancel()


async def nothing(_sandbox: Sandbox) -> None:
    pass


async def use(registry: Registry, whose: Use, sandbox_id: str | None = None) -> None:
    await registry.use(whose, sandbox_id, nothing, TransferError)


async def test_a_sandbox_that_comes_after_its_call_gave_up_is_destroyed() -> None:
    async with registered(resolve_timeout_s=0.05) as (service, registry):
        service.open = anyio.Event()
        with pytest.raises(SandboxTimeoutError):
            await use(registry, Use(None, ANONYMOUS))
        service.open.set()
        assert await registry.drain(WAIT_S) == set()
        assert service.deadlines[0] > 0.05, "the making must outlast the waiting"
        assert service.alive == set()


async def test_a_sandbox_that_is_ready_in_the_moment_its_call_is_cancelled_is_destroyed() -> None:
    async with registered() as (service, registry):
        with anyio.CancelScope() as calling:
            service.before_answer = calling.cancel
            await use(registry, Use(None, ANONYMOUS))
        assert calling.cancelled_caught
        assert await registry.drain(WAIT_S) == set()
        assert service.alive == set()


async def test_what_is_being_made_when_everything_ends_is_destroyed_before_the_end() -> None:
    async with registered() as (service, registry):
        service.open = anyio.Event()
        failed: list[AgentSandboxError] = []

        async def call() -> None:
            try:
                await use(registry, Use(registry.process_scope, ANONYMOUS))
            except SandboxNotFoundError as error:
                failed.append(error)

        async with anyio.create_task_group() as calls:
            calls.start_soon(call)
            await service.asked.wait()
            registry.end_all()
            assert await registry.drain(0.01) == set()
            service.before_answer = lambda: service.alive.add("there")
            service.open.set()
            assert await registry.drain(WAIT_S) == set()
            assert service.alive == {"there"}
        assert len(failed) == 1


async def test_a_sandbox_that_two_sessions_find_at_once_belongs_to_one() -> None:
    async with registered() as (service, registry):
        service.alive.add("box")
        service.open = anyio.Event()
        outcomes: list[str] = []

        async def call() -> None:
            try:
                await use(registry, Use(registry.open_scope(ANONYMOUS), ANONYMOUS), "box")
            except SandboxOwnedError:
                outcomes.append("refused")
            else:
                outcomes.append("used")

        async with anyio.create_task_group() as calls:
            calls.start_soon(call)
            calls.start_soon(call)
            await anyio.wait_all_tasks_blocked()
            assert service.connected == ["box", "box"]
            service.open.set()
        assert sorted(outcomes) == ["refused", "used"]


async def test_handles_without_an_owner_are_kept_up_to_a_number_and_owned_ones_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ownership, "KEPT_HANDLES", 2)
    async with registered() as (service, registry):
        service.alive |= {"own", "a", "b", "c"}
        session, lone = Use(registry.open_scope(ANONYMOUS), ANONYMOUS), Use(None, ANONYMOUS)
        await use(registry, session, "own")
        for sandbox_id in ("a", "b", "a", "c"):
            await use(registry, lone, sandbox_id)
        for sandbox_id in ("own", "a", "c"):
            await use(registry, session if sandbox_id == "own" else lone, sandbox_id)
        assert service.connected == ["own", "a", "b", "c"]
        await use(registry, lone, "b")  # used least lately, so forgotten
        assert service.connected == ["own", "a", "b", "c", "b"]


@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_visit_that_fails_says_whether_the_sandbox_is_still_there(is_gone: bool) -> None:
    async with registered() as (service, registry):
        service.alive.add("box")

        async def fails(_sandbox: Sandbox) -> None:
            if is_gone:
                service.alive.clear()
            raise SandboxUnavailableError

        error = SandboxNotFoundError if is_gone else SandboxUnavailableError
        with pytest.raises(error):
            await registry.visit(Use(None, ANONYMOUS), "box", fails)
