"""Work that must not be cut short, whoever cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end; a cancellation of the caller is held back until then.

    A shielded scope of anyio stops only anyio's own cancellations. `Task.cancel`, which servers
    and `asyncio.timeout` use, would go through it and leave a thread behind that still works on
    a file or a database; so the work has a task of its own.
    """
    task = asyncio.create_task(work)
    held_back: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as cancellation:
                held_back = cancellation
    if held_back is not None:
        if not task.cancelled():
            task.exception()  # looked at: the cancellation is what the caller gets
        raise held_back
    return task.result()
