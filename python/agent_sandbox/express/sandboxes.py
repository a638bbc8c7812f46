"""The sandboxes that live in this process: who they are, who uses them, and when they end."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial

from agent_sandbox.errors import (
    ArgumentError,
    SandboxNotFoundError,
    SandboxUnavailableError,
    UnsupportedError,
)
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.isolation import RunningSandbox
from agent_sandbox.express.isolation.watch import watch_disk
from agent_sandbox.express.leases import Use
from agent_sandbox.express.processes.commands import Commands
from agent_sandbox.express.spares import Spares
from agent_sandbox.express.state import Instance
from agent_sandbox.express.tally import Ending, Tally
from agent_sandbox.express.tree import Tree
from agent_sandbox.express.watch import Pending, PolledWatch
from agent_sandbox.limits import DEFAULT_TTL_S, MAX_TTL_S, TRANSFER_TIMEOUT_S

_END_WAIT_S = 5.0

HOLD_S = TRANSFER_TIMEOUT_S
"""How long work that runs at the end of a sandbox's life may hold the sandbox after it."""

DISK_SLOTS = 4
"""Threads of the disk that one sandbox may have at once."""

LONG_ANSWERS = 2
"""Answers without a small bound that one sandbox may have in memory at once."""

_log = logging.getLogger(__name__)


def checked_ttl(seconds: int | None) -> int:
    """Return a life in seconds, the default for None.

    Raises:
        ArgumentError: E2001, below 1 and above 24 hours.
    """
    if seconds is None:
        return DEFAULT_TTL_S
    if not 1 <= seconds <= MAX_TTL_S:
        raise ArgumentError
    return seconds


class Sandbox:
    """One sandbox. Everything but its `tree` belongs to the event loop.

    Attributes:
        sandbox_id: See `spares.Prepared`.
        access_token: Credential of the data plane.
        owner: Digest of the API key that made it.
        started_at: Unix seconds.
        end_at: Unix seconds; when it ends unless it is renewed.
        watches: Watches that a client polls, by their id.
        open_watches: How many more are being opened, or are streamed.
        pending: Counts the events that wait for its clients.
        disk_slots: Its share of the disk's threads.
        long_answers: How many answers of any size may be under way.
        ending: The task that ends it, once that has begun.
        released: Nobody wants it any more but the retained commands that run in it.
    """

    def __init__(
        self,
        sandbox_id: str,
        tree: Tree,
        running: RunningSandbox | None,
        *,
        template: str,
        metadata: dict[str, str],
        variables: dict[str, str],
        owner: bytes,
        on_command_end: Callable[[Sandbox], None],
    ) -> None:
        self.sandbox_id = sandbox_id
        self.tree = tree
        self.running = running
        told = partial(on_command_end, self)
        self._commands = None if running is None else Commands(running, variables, told)
        self.template = template
        self.metadata = metadata
        self.owner = owner
        self.access_token = secrets.token_urlsafe(32)
        self.started_at = time.time()
        self.end_at = self.started_at
        self.watches: dict[str, PolledWatch] = {}
        self.uses: set[Use] = set()
        self.open_watches = 0
        self.pending = Pending()
        self.disk_slots = asyncio.Semaphore(DISK_SLOTS)
        self.long_answers = asyncio.Semaphore(LONG_ANSWERS)
        self.ended = False
        self.released = False
        self.ending: asyncio.Task[None] | None = None
        self.unused = asyncio.Event()
        self.unused.set()
        self.timer: asyncio.TimerHandle | None = None

    @property
    def commands(self) -> Commands:
        """Its commands.

        Raises:
            UnsupportedError: E5006: there is no isolation here, so nothing runs.
        """
        if self._commands is None:
            raise UnsupportedError
        return self._commands

    @property
    def retained(self) -> bool:
        """Whether a retained command runs in it."""
        return self._commands is not None and self._commands.retained

    @property
    def running_commands(self) -> int:
        """How many of its commands run."""
        return 0 if self._commands is None else len(tuple(self._commands))

    async def stop(self) -> None:
        """End its commands and give up its files; the directory stays."""
        if self._commands is not None:
            self._commands.close()
        if self.running is not None:
            await self.running.stop()
        self.tree.close()

    def accepts_token(self, token: bytes) -> bool:
        """Return whether a header's raw value is the access token, in constant time."""
        return hmac.compare_digest(token, self.access_token.encode())

    def accepts_signature(self, signature: str, *parts: str) -> bool:
        """Return whether a signed URL was made with this sandbox's token.

        Args:
            signature: `v1_` and the unpadded Base64 of the SHA-256 of the signed text.
            parts: Path, operation and user as they stand in the URL, then the expiry if it has one.
        """
        path, operation, user, *expiry = parts
        signed = ":".join((path, operation, user, self.access_token, *expiry))
        digest = hashlib.sha256(signed.encode("utf-8", "surrogatepass")).digest()
        wanted = "v1_" + base64.b64encode(digest).rstrip(b"=").decode()
        return hmac.compare_digest(signature.encode("utf-8", "surrogatepass"), wanted.encode())

    def use(self, *, holds: bool = True) -> Use:
        """Return a lease, for an `async with` block of the task that works on the sandbox.

        Args:
            holds: Whether the end of the sandbox's life waits for this work, up to `HOLD_S`. A
                watch does not hold.
        """
        return Use(self, holds=holds)


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
        if not sandbox.ended:
            self._begin_end(sandbox, "died")

    def set_ttl(self, sandbox: Sandbox, ttl_seconds: int, *, shorten: bool = True) -> None:
        """Let a sandbox end `ttl_seconds` from now; without `shorten`, only if that is later."""
        # The monotonic clock decides: a step of the wall clock, which is only shown, ends nothing
        # and renews nothing.
        loop = asyncio.get_running_loop()
        if sandbox.timer:
            if not shorten and loop.time() + ttl_seconds <= sandbox.timer.when():
                return
            sandbox.timer.cancel()
        sandbox.end_at = time.time() + ttl_seconds
        sandbox.timer = loop.call_later(ttl_seconds, self._expire, sandbox)

    def _command_ended(self, sandbox: Sandbox) -> None:
        if sandbox.released and not sandbox.retained:
            self._expire(sandbox)

    def _expire(self, sandbox: Sandbox) -> None:
        self._begin_end(sandbox, "expired")

    async def kill(self, sandbox: Sandbox) -> None:
        """End a sandbox now: interrupt what runs in it and remove its directory.

        One that is ending already ends faster: it waits for nobody any more.
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
            if reason != "expired" or not use.holds:  # time that is over waits for a transfer
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
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HOLD_S):
                await sandbox.unused.wait()
        for use in tuple(sandbox.uses):
            use.interrupt()
        await sandbox.unused.wait()
        await sandbox.stop()
        try:
            await self._disk.run(lambda: self._instance.remove_root(sandbox.sandbox_id))
        except OSError as error:  # the sweep tries again
            _log.error(
                "a sandbox's directory was not removed",
                extra={"fields": {"sandbox": sandbox.sandbox_id[:8], "errno": error.errno}},
            )
