"""Keeps a sandbox alive while it is used: from the start, while bytes flow, to after the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agent_sandbox.errors import AgentSandboxError, SandboxNotFoundError
from agent_sandbox.mcp_server.logs import log, log_unexpected

FRESH_S = 1.0
"""A renewal this recent also counts for a call that starts now (less where the TTL is short)."""

IDLE_S = 0.05
"""After the end of a call, the renewal waits this long for a further call to take it along."""

SHORTEST_WAIT_S = 0.2


class Renewable(Protocol):
    """The part of a sandbox that renewal needs."""

    async def renew(self, ttl_seconds: int, /) -> object:
        """Set end = max(end, now + ttl_seconds)."""


class Lease:
    """One sandbox's end, moved by a single task however many calls use the sandbox.

    The requests run beside the calls and are merged, so that a row of calls costs about one round
    trip a second instead of two for each call. What holds at rest is exact: a renewal that began
    after the end of the last call. While calls run, the last one began at most 1 s or a hundredth
    of the TTL before the youngest call, or a third of the TTL ago.

    Args:
        sandbox: What to renew; it was made or renewed when this was constructed.
        ttl_seconds: What to renew it by; may be changed at any time.
        tasks: Where the renewals run.
    """

    def __init__(self, sandbox: Renewable, ttl_seconds: int, tasks: TaskGroup) -> None:
        self.ttl_seconds = ttl_seconds
        self._sandbox = sandbox
        self._tasks = tasks
        self._uses = 0
        self._began = anyio.current_time()
        self._due = False  # a renewal must begin now
        self._used = False  # a call has ended since the last renewal began
        self._running = False
        self._wake = anyio.Event()
        self._sent = anyio.Event()
        self._sent.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease for the body of a call."""
        self._uses += 1
        if anyio.current_time() - self._began > min(FRESH_S, self.ttl_seconds / 100):
            self._due = True
        self._run_or_wake()
        try:
            yield
        finally:
            self._uses -= 1
            self._used = True
            self._run_or_wake()

    async def settle(self) -> None:
        """Let every call that has ended be followed by its renewal now, not in a moment."""
        if self._used:
            await self._renew()
        await self._sent.wait()

    def _run_or_wake(self) -> None:
        self._wake.set()
        if not self._running:
            self._running = True
            self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            while True:
                self._wake = anyio.Event()
                if self._due:
                    await self._renew()
                elif self._uses:
                    await self._sleep(max(self.ttl_seconds / 3, SHORTEST_WAIT_S))
                elif self._used:
                    await self._sleep(IDLE_S)
                else:
                    return
        finally:
            self._running = False

    async def _sleep(self, seconds: float) -> None:
        with anyio.move_on_after(seconds) as slept:
            await self._wake.wait()
        if slept.cancelled_caught:
            self._due = self._used or self._uses > 0

    async def _renew(self) -> None:
        self._due = self._used = False
        self._began = anyio.current_time()
        self._sent = sent = anyio.Event()
        try:
            await self._sandbox.renew(self.ttl_seconds)
        except SandboxNotFoundError:
            return  # the call itself meets the same answer and reports it
        except AgentSandboxError as error:
            log.warning("renewing a sandbox failed (%s)", error.code)
        except Exception as error:  # noqa: BLE001 - it runs in the server's own task group
            log_unexpected("renewal", error)
        except anyio.get_cancelled_exc_class():
            self._used = True
            self._run_or_wake()  # who waited is gone, and the calls still need their renewal
            raise
        finally:
            sent.set()
