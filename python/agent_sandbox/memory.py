"""How the allocator of a server process treats memory of a few MiB that comes and goes."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes

KEPT_BYTES = 33_554_432
"""Freed memory that is kept for the next call (32 MiB)."""

GIVE_BACK_S = 20.0
"""How often what is kept goes back to the kernel."""

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Let the next call reuse what the last one freed, instead of asking the kernel again.

    By default glibc gives blocks of this size back at once: each call of 1 MiB then pays for 500
    to 900 page faults, about a millisecond. It counts for the whole process, so only a process of
    ours does it. Other C libraries are left alone.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def give_back_regularly(loop: asyncio.AbstractEventLoop, every_s: float = GIVE_BACK_S) -> None:
    """Let `loop` give freed memory back to the kernel every so often, while it runs.

    What is kept for the next call would else stay for ever, at the highest that many calls at once
    ever needed, also where pieces in use lie between what is free.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another C library
        return

    def turn() -> None:
        loop.run_in_executor(None, trim, 0)
        loop.call_later(every_s, turn)

    loop.call_later(every_s, turn)
