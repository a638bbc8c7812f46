"""Worker threads for everything that waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from agent_sandbox.errors import ServiceBusyError

_T = TypeVar("_T")

SHARED_THREADS = 12
"""Threads for the work of all sandboxes together."""

_OWN_THREADS = 4
"""Threads for the service's own work: no sandbox can keep another from being made or removed."""

BUSY_S = 20.0
"""How long the work of a sandbox may wait for one of the shared threads."""


class Disk:
    """Runs blocking work in a bounded number of threads, away from the event loop."""

    def __init__(self) -> None:
        self._own = ThreadPoolExecutor(_OWN_THREADS, thread_name_prefix="disk-own")
        self._shared = ThreadPoolExecutor(SHARED_THREADS, thread_name_prefix="disk")
        self._free = asyncio.Semaphore(SHARED_THREADS)

    async def run(
        self,
        work: Callable[[], _T],
        *,
        undo: Callable[[_T], object] | None = None,
        slots: asyncio.Semaphore | None = None,
    ) -> _T:
        """Run `work` in a thread and return its result.

        Cancellation waits for the work to end, then goes on: a thread never uses a descriptor that
        its caller has closed already.

        Args:
            work: What is run.
            undo: Run in a thread on the result of a `work` whose caller was cancelled. Needed
                where the result owns something: nobody else will ever hold it.
            slots: The share of the sandbox whose work it is, taken while the work waits and runs;
                None for the service's own work, which has threads of its own.

        Raises:
            ServiceBusyError: E5015: other sandboxes had all threads for `BUSY_S`; `work` did not
                run.
        """
        if slots is None:
            return await self._run(self._own, work, undo)
        async with slots:
            try:
                async with asyncio.timeout(BUSY_S if self._free.locked() else None):
                    await self._free.acquire()
            except TimeoutError:
                raise ServiceBusyError from None
            try:
                return await self._run(self._shared, work, undo)
            finally:
                self._free.release()

    async def _run(
        self,
        threads: ThreadPoolExecutor,
        work: Callable[[], _T],
        undo: Callable[[_T], object] | None,
    ) -> _T:
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if await _succeeded(future) and undo:
                result = future.result()
                await _succeeded(loop.run_in_executor(self._own, lambda: undo(result)))
            raise

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        for threads in (self._shared, self._own):
            threads.shutdown()


async def _succeeded(future: asyncio.Future[_T]) -> bool:
    """Wait for the end of a thread's work, whatever is cancelled meanwhile."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return not future.cancelled() and future.exception() is None
