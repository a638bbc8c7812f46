"""The sandboxes that live in this process, and when they end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Iterator

from agent_sandbox.errors import SandboxNotFoundError, SandboxUnavailableError
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.isolation import RunningSandbox
from agent_sandbox.express.isolation.watch import watch_disk
from agent_sandbox.express.sandbox import Sandbox
from agent_sandbox.express.spares import Spares
from agent_sandbox.express.state import Instance
from agent_sandbox.express.tally import Ending, Tally
from agent_sandbox.express.tree import Tree
from agent_sandbox.limits import MAX_TTL_S

_END_WAIT_S = 5.0

LEASE_S = 5.0
"""How long a sandbox whose time is up lives on after the last work that held it.

Its caller renews it after the work, and that takes a round trip.
"""

MAX_OVERTIME_S = float(MAX_TTL_S)
"""How long work may hold a sandbox whose time is up."""

_log = logging.getLogger(__name__)


class Sandboxes:
    """Every sandbox of this instance, with the timers that end them.

    Attributes:
        tally: What happened since the start.

    Args:
        instance: Where their directories are.
        disk: Threads for removing those.
        spares: Makes them.
    """

    def __init__(self, instance: Instance, disk: Disk, spares: Spares) -> None:
        self._instance = instance
        self._disk = disk
        self._spares = spares
        self._watches: set[asyncio.Task[None]] = set()
        self._living: dict[str, Sandbox] = {}
        self._endings: dict[asyncio.Task[None], Sandbox] = {}
        self._closing = False
        self._alone = asyncio.Event()
        self.tally = Tally()

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(tuple(self._living.values()))

    def get(self, sandbox_id: str, *, ending: bool = False) -> Sandbox:
        """Return a living sandbox, with `ending` also one that is not gone yet.

        Raises:
            SandboxNotFoundError: E5001.
        """
        sandbox = self._living.get(sandbox_id)
        if sandbox is None and ending:
            leaving = self._endings.values()
            sandbox = next((one for one in leaving if one.sandbox_id == sandbox_id), None)
        if sandbox is None:
            raise SandboxNotFoundError
        return sandbox

    async def create(
        self,
        ttl_seconds: int,
        *,
        template: str,
        metadata: dict[str, str],
        variables: dict[str, str],
        network: bool,
        owner: bytes,
    ) -> Sandbox:
        """Make a sandbox that ends after `ttl_seconds`.

        Args:
            ttl_seconds: Its life.
            template: What its maker called it.
            metadata: What its maker attached.
            variables: Environment of all its commands.
            network: Whether it reaches the network.
            owner: See `Sandbox`.

        Raises:
            FileOperationError: E4006 and its other kinds: the disk refused.
            SandboxUnavailableError: E5003: it did not come up, or the service is ending.
        """
        if self._closing:
            raise SandboxUnavailableError
        prepared = await self._spares.take(network=network)
        running = prepared.running
        sandbox = Sandbox(
            prepared.sandbox_id,
            Tree(prepared.root_fd),
            running,
            template=template,
            metadata=metadata,
            variables=variables,
            owner=owner,
            on_command_end=self._command_ended,
        )
        self._living[sandbox.sandbox_id] = sandbox
        self.tally.created += 1
        self.set_ttl(sandbox, ttl_seconds)
        if self._closing:  # the end began while it was made
            self._begin_end(sandbox, "shutdown")
            raise SandboxUnavailableError
        if running is not None:
            self._watch(watch_disk(running))
            self._watch(self._follow(sandbox, running))
        self._spares.fill()
        return sandbox

    def _watch(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._watches.add(task)
        task.add_done_callback(self._watches.discard)

    async def _follow(self, sandbox: Sandbox, running: RunningSandbox) -> None:
        """End the sandbox when its processes do, however that came about."""
        await running.ended.wait()
        self._begin_end(sandbox, "died")

    def set_ttl(self, sandbox: Sandbox, ttl_seconds: float, *, shorten: bool = True) -> None:
        """Let a sandbox end `ttl_seconds` from now; without `shorten`, only if that is later."""
        # The monotonic clock decides: a step of the wall clock, which is only shown, ends nothing
        # and renews nothing.
        now = asyncio.get_running_loop().time()
        if sandbox.timer and not shorten and now + ttl_seconds <= sandbox.timer.when():
            return
        sandbox.overtime_since = None
        self._arm(sandbox, now + ttl_seconds)

    def _arm(self, sandbox: Sandbox, when: float) -> None:
        loop = asyncio.get_running_loop()
        if sandbox.timer:
            sandbox.timer.cancel()
        sandbox.end_at = time.time() + when - loop.time()
        sandbox.timer = loop.call_at(when, self._expire, sandbox)

    def _command_ended(self, sandbox: Sandbox) -> None:
        if sandbox.released and not sandbox.retained:
            self._expire(sandbox)

    def _expire(self, sandbox: Sandbox) -> None:
        """End a sandbox, unless work holds it or did a moment ago."""
        now = asyncio.get_running_loop().time()
        until = now
        if sandbox.held and sandbox.overtime_since is None:
            sandbox.overtime_since = now
        if sandbox.overtime_since is not None:
            last = now if sandbox.held else sandbox.idle_since
            until = min(last + LEASE_S, sandbox.overtime_since + MAX_OVERTIME_S)
        if until > now:
            self._arm(sandbox, until)
        else:
            self._begin_end(sandbox, "expired")

    async def kill(self, sandbox: Sandbox) -> None:
        """End a sandbox now: interrupt what runs in it and remove its directory.

        Waits a few seconds for that; what takes longer goes on by itself.
        """
        await asyncio.wait([self._begin_end(sandbox, "killed")], timeout=_END_WAIT_S)

    async def drain(self, seconds: float) -> None:
        """Make no more, and wait at most so long for transfers and foreground commands."""
        self._closing = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while tasks := self._holding_tasks():
                    await asyncio.wait(tasks)

    def _holding_tasks(self) -> list[asyncio.Task[object]]:
        every = (*self, *self._endings.values())
        return [use.task for one in every for use in one.uses if use.holds and use.task]

    async def release(self, sandbox: Sandbox) -> None:
        """End a sandbox as `kill` does; where a retained command runs in it, at that one's end."""
        if sandbox.retained:
            sandbox.released = True
        else:
            await self.kill(sandbox)

    async def outlive(self) -> None:
        """Release all sandboxes, make no more, and wait until only ended ones are left."""
        self._closing = True
        for sandbox in self:
            sandbox.released = True
            if not sandbox.retained:
                self._begin_end(sandbox, "shutdown")
        while self._living:
            self._alone.clear()
            await self._alone.wait()

    async def close(self) -> None:
        """End all sandboxes, wait until their directories are gone, and make no more."""
        self._closing = True
        for sandbox in (*self, *self._endings.values()):
            self._begin_end(sandbox, "shutdown")
        await self._spares.close()
        while self._endings or self._watches:
            await asyncio.wait((*self._endings, *self._watches))

    def _begin_end(self, sandbox: Sandbox, reason: Ending) -> asyncio.Task[None]:
        for use in tuple(sandbox.uses):
            use.interrupt()
        if sandbox.ending is not None:
            return sandbox.ending
        sandbox.ended = True
        self.tally.ended[reason] += 1
        _log.info(
            "sandbox ended", extra={"fields": {"sandbox": sandbox.sandbox_id[:8], "reason": reason}}
        )
        self._living.pop(sandbox.sandbox_id, None)
        if not self._living:
            self._alone.set()
        if sandbox.timer:
            sandbox.timer.cancel()
        for watch in sandbox.watches.values():
            watch.close()
        sandbox.watches.clear()
        ending = asyncio.get_running_loop().create_task(self._end(sandbox))
        sandbox.ending = ending
        self._endings[ending] = sandbox
        ending.add_done_callback(self._endings.pop)
        return ending

    async def _end(self, sandbox: Sandbox) -> None:
        await sandbox.unused.wait()
        await sandbox.stop()
        try:
            await self._disk.run(lambda: self._instance.remove_root(sandbox.sandbox_id))
        except OSError as error:  # the sweep tries again
            _log.error(
                "a sandbox's directory was not removed",
                extra={"fields": {"sandbox": sandbox.sandbox_id[:8], "errno": error.errno}},
            )
