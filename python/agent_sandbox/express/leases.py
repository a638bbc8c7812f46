"""Leases: what works on a sandbox keeps its directory, and ends when the sandbox does."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from agent_sandbox.errors import SandboxNotFoundError

if TYPE_CHECKING:
    from agent_sandbox.express.sandbox import Sandbox


class Use:
    """A lease: the sandbox's directory stays as long as the block runs.

    When the sandbox ends the block is cancelled, and raises `SandboxNotFoundError` where it
    would have been interrupted: the work has exactly one outcome.

    Attributes:
        holds: See `Sandbox.use`.
        task: The task that works, once the block runs.
    """

    def __init__(self, sandbox: Sandbox, *, holds: bool) -> None:
        self._sandbox = sandbox
        self.task: asyncio.Task[object] | None = None
        self._interrupted = False
        self.holds = holds

    async def __aenter__(self) -> Sandbox:
        if self._sandbox.ended:
            raise SandboxNotFoundError
        self.task = asyncio.current_task()
        self._sandbox.uses.add(self)
        self._sandbox.unused.clear()
        return self._sandbox

    def interrupt(self) -> None:
        """Cancel the block."""
        if self.task and not self._interrupted:
            self._interrupted = True
            self.task.cancel()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sandbox = self._sandbox
        sandbox.uses.discard(self)
        if self.holds:
            sandbox.idle_since = asyncio.get_running_loop().time()
        if not sandbox.uses:
            sandbox.unused.set()
        if not self._interrupted or self.task is None:
            return
        if not isinstance(error, asyncio.CancelledError):
            # The block ended by itself in the same moment: take the cancellation that is on its
            # way, so that it does not hit what follows.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            self.task.uncancel()
            return
        if self.task.uncancel() == 0:
            raise SandboxNotFoundError from None
