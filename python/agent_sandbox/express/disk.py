"""Worker threads for everything that waits for the disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

_THREADS = 16


class Disk:
    """Runs blocking work in a bounded number of threads, away from the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="disk")

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
            slots: Taken while the work waits and runs, so that one sandbox cannot have all threads.
        """
        async with slots or contextlib.nullcontext():
            future = self._submit(work)
            try:
                return await asyncio.shield(future)
            except asyncio.CancelledError:
                if await _succeeded(future) and undo:
                    result = future.result()
                    await _succeeded(self._submit(lambda: undo(result)))
                raise

    def _submit(self, work: Callable[[], _T]) -> asyncio.Future[_T]:
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._threads.shutdown()


async def _succeeded(future: asyncio.Future[_T]) -> bool:
    """Wait for the end of a thread's work, whatever is cancelled meanwhile."""
    while not future.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([future])
    return not future.cancelled() and future.exception() is None
