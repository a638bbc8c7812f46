"""Worker threads for everything that waits for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_T = TypeVar("_T")

_THREADS = 16


class Disk:
    """Runs blocking work in a bounded number of threads, away from the event loop."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="disk")

    async def run(self, work: Callable[[], _T]) -> _T:
        """Run `work` in a thread and return its result.

        Cancellation waits for the work to end, then goes on: a thread never uses a descriptor that
        its caller has closed already.
        """
        future = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            while not future.done():
                try:
                    await asyncio.wait([future])
                except asyncio.CancelledError:
                    continue
            if not future.cancelled():
                future.exception()  # looked at, so that it is not reported as lost
            raise

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._threads.shutdown()
