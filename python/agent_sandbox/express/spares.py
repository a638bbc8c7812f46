"""Sandboxes that stand ready before anybody asks: making one takes longer than a caller waits."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import secrets
from collections import deque
from dataclasses import dataclass

from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.failures import os_errors
from agent_sandbox.express.isolation import RunningSandbox
from agent_sandbox.express.state import Instance

SPARES = 2
"""How many stand ready: the next caller is served while one is made for the caller after him."""

_ID_BYTES = 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A sandbox without a life.

    Attributes:
        sandbox_id: 160 random bits in lower-case Base32 after an `i`: a valid DNS label.
        root_fd: Its `/`, the caller's to close.
        running: Where commands run, or None where there are files alone.
    """

    sandbox_id: str
    root_fd: int
    running: RunningSandbox | None


class Spares:
    """Makes sandboxes and keeps some ready.

    Args:
        instance: Where their directories are.
        disk: Threads for making and removing those.
        engine: Brings them up.
    """

    def __init__(self, instance: Instance, disk: Disk, engine: Engine) -> None:
        self._instance = instance
        self._disk = disk
        self._engine = engine
        self._ready: deque[asyncio.Task[Prepared]] = deque()
        self._closed = False

    def fill(self) -> None:
        """Begin to make what is missing."""
        while not self._closed and len(self._ready) < SPARES:
            task = asyncio.get_running_loop().create_task(self._make(self._engine.network(None)))
            task.add_done_callback(_look_at)
            self._ready.append(task)

    async def take(self, *, network: bool) -> Prepared:
        """Return a sandbox that nobody has used.

        Raises:
            FileOperationError: E4006 and its other kinds: the disk refused.
            SandboxUnavailableError: E5003: it did not come up.
            SandboxTimeoutError: E5004: nor in time.
        """
        while self._ready and network == self._engine.network(None):
            task = self._ready.popleft()
            try:
                prepared = await asyncio.shield(task)
            except asyncio.CancelledError:
                self._ready.appendleft(task)  # the caller went; the next one has it
                raise
            except AgentSandboxError:
                continue  # what failed some time ago may work now
            if prepared.running is None or not prepared.running.ended.is_set():
                return prepared
            await self._discard(prepared)
        return await self._make(network)

    async def close(self) -> None:
        """End and remove what stands ready."""
        self._closed = True
        while self._ready:
            task = self._ready.popleft()
            with contextlib.suppress(AgentSandboxError):
                await self._discard(await task)

    async def _make(self, network: bool) -> Prepared:
        sandbox_id = "i" + base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()

        def make() -> int:
            with os_errors():
                return self._instance.make_root(sandbox_id)

        def undo(root_fd: int) -> None:
            os.close(root_fd)
            self._instance.remove_root(sandbox_id)

        root_fd = await self._disk.run(make, undo=undo)
        try:
            running = await self._engine.start(root_fd, network=network)
        except BaseException:
            os.close(root_fd)
            await self._remove(sandbox_id)
            raise
        if running is None:
            return Prepared(sandbox_id, root_fd, None)
        os.close(root_fd)
        # The view that commands have, with the system's directories in it.
        return Prepared(sandbox_id, os.dup(running.root_fd), running)

    async def _discard(self, prepared: Prepared) -> None:
        os.close(prepared.root_fd)
        if prepared.running is not None:
            await prepared.running.stop()
        await self._remove(prepared.sandbox_id)

    async def _remove(self, sandbox_id: str) -> None:
        with contextlib.suppress(OSError):  # the sweep tries again
            await self._disk.run(lambda: self._instance.remove_root(sandbox_id))


def _look_at(task: asyncio.Task[Prepared]) -> None:
    if not task.cancelled():
        task.exception()  # looked at, so that a spare that failed is not reported as lost
