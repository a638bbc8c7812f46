"""Keeps a sandbox alive while it is used: at the start, while bytes flow, and at the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agent_sandbox.errors import AgentSandboxError, SandboxNotFoundError
from agent_sandbox.mcp_server.logs import log, log_unexpected


class Renewable(Protocol):
    """The part of a sandbox that renewal needs."""

    async def renew(self, ttl_seconds: int, /) -> object:
        """Set end = max(end, now + ttl_seconds)."""


class Lease:
    """One sandbox's end, moved by a single task however many calls use the sandbox.

    The requests run beside the calls and are merged: a renewal that is asked for while one is on
    its way is sent once, after it. So a call costs no round trip of its own, and each start and
    each end is followed by a renewal that began after it.
    """

    def __init__(self, sandbox: Renewable, ttl_seconds: int, tasks: TaskGroup) -> None:
        self.ttl_seconds = ttl_seconds
        self._sandbox = sandbox
        self._tasks = tasks
        self._uses = 0
        self._running = False
        self._wake = anyio.Event()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease for the body of a call."""
        self._uses += 1
        self._ask()
        try:
            yield
        finally:
            self._uses -= 1
            self._ask()

    def _ask(self) -> None:
        self._wake.set()
        if not self._running:
            self._running = True
            self._tasks.start_soon(self._run)

    async def _run(self) -> None:
        try:
            while self._wake.is_set() or self._uses:
                self._wake = anyio.Event()
                await self._renew()
                if self._uses:
                    with anyio.move_on_after(max(self.ttl_seconds / 3, 0.2)):
                        await self._wake.wait()
        finally:
            self._running = False

    async def _renew(self) -> None:
        try:
            await self._sandbox.renew(self.ttl_seconds)
        except SandboxNotFoundError:
            return  # the call itself meets the same answer and reports it
        except AgentSandboxError as error:
            log.warning("renewing a sandbox failed (%s)", error.code)
        except Exception as error:  # noqa: BLE001 - it runs in the server's own task group
            log_unexpected("renewal", error)
