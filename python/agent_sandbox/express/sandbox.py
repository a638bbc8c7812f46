"""One sandbox: what it is made of, who uses it, and what proves that a caller may."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from functools import partial

from agent_sandbox.errors import ArgumentError, UnsupportedError
from agent_sandbox.express.isolation import RunningSandbox
from agent_sandbox.express.leases import Use
from agent_sandbox.express.processes.commands import Commands
from agent_sandbox.express.tree import Tree
from agent_sandbox.express.watch import Pending, PolledWatch
from agent_sandbox.limits import DEFAULT_TTL_S, MAX_TTL_S

DISK_SLOTS = 4
"""Threads of the disk that one sandbox may have at once."""

LONG_ANSWERS = 2
"""Answers without a small bound that one sandbox may have in memory at once."""


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
        overtime_since: Since when (the loop's clock) it lives only because work holds it.
        idle_since: When (the loop's clock) work last ceased to hold it.
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
        self.overtime_since: float | None = None
        self.idle_since = 0.0

    @property
    def held(self) -> bool:
        """Whether work goes on that keeps it alive."""
        return any(use.holds for use in self.uses)

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
            holds: Whether the sandbox lives on while this work lasts, when its time is up
                meanwhile. A transfer and a foreground command hold it; a watch and the reader of a
                background command do not.
        """
        return Use(self, holds=holds)
