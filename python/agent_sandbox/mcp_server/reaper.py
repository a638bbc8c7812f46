"""Destroys the sandboxes whose scope has ended, and knows them until they are gone."""

from __future__ import annotations

from itertools import count
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from agent_sandbox.errors import AgentSandboxError, SandboxNotFoundError
from agent_sandbox.mcp_server.logs import log, log_unexpected

PARALLEL_DESTROYS = 16
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0

TOLD_EVERY = 10
"""Of the failures of one sandbox the first is logged, and then one in so many."""


class Destroys(Protocol):
    """The part of a sandbox client that the reaper needs."""

    async def release(self, sandbox_id: str) -> bool:
        """Destroy one sandbox, now or after its retained task; False when it was gone already."""


class Reaper:
    """Destroys what is recorded, however long one destroy takes and however often it fails.

    A sandbox is recorded before its destruction begins and forgotten only when the service said
    that it is gone (an answer of "unknown" counts), or that it goes with its retained task. Any
    other error is retried with growing pauses. Not thread-safe: use it from the event loop that
    runs its task group.
    """

    def __init__(self, client: Destroys, tasks: TaskGroup) -> None:
        self._client = client
        self._tasks = tasks
        self._recorded: set[str] = set()
        self._slots = anyio.Semaphore(PARALLEL_DESTROYS)
        self._empty = anyio.Event()
        self._empty.set()

    @property
    def recorded(self) -> frozenset[str]:
        """The sandboxes that are not known to be gone yet."""
        return frozenset(self._recorded)

    def doom(self, sandbox_ids: list[str]) -> None:
        """Record sandboxes for destruction and begin it. Never waits."""
        fresh = [sandbox_id for sandbox_id in sandbox_ids if sandbox_id not in self._recorded]
        if not fresh:
            return
        if self._empty.is_set():
            self._empty = anyio.Event()
        self._recorded.update(fresh)
        for sandbox_id in fresh:
            self._tasks.start_soon(self._destroy, sandbox_id)

    async def drain(self, timeout_s: float) -> frozenset[str]:
        """Wait until everything recorded is gone, at most `timeout_s`; return what is left."""
        with anyio.move_on_after(timeout_s):
            while self._recorded:
                await self._empty.wait()
        return self.recorded

    async def _destroy(self, sandbox_id: str) -> None:
        pause_s = FIRST_PAUSE_S
        for tries in count(1):
            if await self._destroyed(sandbox_id, tries):
                break
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._recorded.discard(sandbox_id)
        if not self._recorded:
            self._empty.set()

    async def _destroyed(self, sandbox_id: str, tries: int) -> bool:
        tells = tries == 1 or tries % TOLD_EVERY == 0
        async with self._slots:
            try:
                await self._client.release(sandbox_id)
            except SandboxNotFoundError:
                return True
            except AgentSandboxError as error:
                if tells:
                    log.warning(
                        "destroying a sandbox failed (%s, try %d) and is tried again",
                        error.code,
                        tries,
                    )
                return False
            except Exception as error:  # noqa: BLE001 - one failing destroy must not stop the reaper
                if tells:
                    log_unexpected("reaper", error)
                return False
        return True
