"""A lease renews at the start, while a call runs, and after the end, in as few requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from agent_sandbox.errors import SandboxNotFoundError, SandboxUnavailableError
from agent_sandbox.mcp_server import renewal
from agent_sandbox.mcp_server.renewal import Lease

WAIT_S = 10


class Renewed:
    """Counts renewals; each can be made to wait or to fail."""

    def __init__(self) -> None:
        self.by: list[int] = []
        self.changed = anyio.Event()
        self.open = anyio.Event()
        self.open.set()
        self.error: Exception | None = None

    async def renew(self, ttl_seconds: int, /) -> None:
        self.by.append(ttl_seconds)
        self.changed.set()
        await self.open.wait()
        if self.error is not None:
            raise self.error

    async def until(self, count: int) -> None:
        with anyio.fail_after(WAIT_S):
            while len(self.by) < count:
                self.changed = anyio.Event()
                await self.changed.wait()


@asynccontextmanager
async def leased(ttl_seconds: int = 300) -> AsyncIterator[tuple[Lease, Renewed]]:
    sandbox = Renewed()
    async with anyio.create_task_group() as tasks:
        yield Lease(sandbox, ttl_seconds, tasks), sandbox
        tasks.cancel_scope.cancel()


async def test_a_call_on_a_fresh_sandbox_costs_one_renewal_after_its_end() -> None:
    async with leased() as (lease, sandbox):
        with lease.held():
            await anyio.wait_all_tasks_blocked()
            assert sandbox.by == []
        await sandbox.until(1)
        await anyio.wait_all_tasks_blocked()
        assert sandbox.by == [300]


async def test_a_call_on_a_sandbox_that_was_not_renewed_lately_renews_at_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(renewal, "FRESH_S", 0)
    async with leased() as (lease, sandbox):
        with lease.held():
            await sandbox.until(1)
        await sandbox.until(2)


async def test_calls_in_a_row_share_their_renewals() -> None:
    async with leased() as (lease, sandbox):
        for _ in range(100):
            with lease.held():
                await anyio.lowlevel.checkpoint()
        await sandbox.until(1)
        await anyio.wait_all_tasks_blocked()
        assert len(sandbox.by) == 1


async def test_a_long_call_renews_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renewal, "SHORTEST_WAIT_S", 0.01)
    async with leased(ttl_seconds=0) as (lease, sandbox):
        with lease.held():
            await sandbox.until(4)


async def test_settling_sends_what_is_due_at_once_and_waits_for_it() -> None:
    async with leased() as (lease, sandbox):
        with lease.held():
            pass
        await lease.settle()
        assert sandbox.by == [300]
        await lease.settle()
        assert sandbox.by == [300]


async def test_settling_waits_for_a_renewal_that_is_on_its_way() -> None:
    async with leased() as (lease, sandbox):
        sandbox.open = anyio.Event()
        with lease.held():
            pass
        await sandbox.until(1)
        with anyio.move_on_after(0.01) as waiting:
            await lease.settle()
        assert waiting.cancelled_caught
        sandbox.open.set()
        await lease.settle()
        assert sandbox.by == [300]


async def test_a_caller_that_settles_and_goes_away_takes_no_renewal_with_it() -> None:
    async with leased() as (lease, sandbox):
        with lease.held():
            pass
        sandbox.open = anyio.Event()
        with anyio.CancelScope() as going:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lease.settle)
                await sandbox.until(1)
                with anyio.fail_after(WAIT_S):
                    while lease._running:  # the lease's own task has nothing left to do
                        await anyio.lowlevel.checkpoint()
                going.cancel()
        sandbox.open.set()
        await sandbox.until(2)


@pytest.mark.parametrize(("ttl_seconds", "age_s"), [(300, 1.1), (50, 0.6)])
async def test_a_renewal_is_old_after_a_second_and_for_a_short_life_after_a_hundredth_of_it(
    ttl_seconds: int, age_s: float
) -> None:
    async with leased(ttl_seconds) as (lease, sandbox):
        lease._began -= age_s
        with lease.held():
            await sandbox.until(1)


async def test_a_changed_time_counts_from_the_next_renewal() -> None:
    async with leased() as (lease, sandbox):
        lease.ttl_seconds = 5
        with lease.held():
            pass
        await lease.settle()
        assert sandbox.by == [5]


@pytest.mark.parametrize(
    "error", [SandboxNotFoundError(), SandboxUnavailableError(), RuntimeError("x")]
)
async def test_a_failed_renewal_hurts_no_call_and_not_the_next_renewal(error: Exception) -> None:
    async with leased() as (lease, sandbox):
        for _ in range(2):
            sandbox.error = error
            with lease.held():
                pass
            await lease.settle()
        assert len(sandbox.by) == 2
