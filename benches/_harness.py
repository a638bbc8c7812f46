"""What every benchmark of this folder shares, and the protocol that `check.py` collects by.

A module `bench_<subject>.py` has up to two things:

- pytest-benchmark tests (`def test_...(benchmark)`), for looking at one thing closely, and
- `def rows() -> Iterator[Row]`, which measures and yields one `Row` for each bound.

`python benches/check.py` runs `rows()` of all modules and prints one table; with `--check` it
exits 1 when a `ratio` is above its `bound`. A module that needs asyncio runs its own loop inside
`rows()`. Names on the command line choose modules: `python benches/check.py bytestream mcp`.

A ratio compares two ways of doing the same work, measured by turns in one process: a machine that
slows down slows both. Absolute times are never bounds.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Attributes:
        work: What was done, with its size.
        ratio: What was measured, in `unit`.
        bound: Largest `ratio` that is acceptable.
        unit: What both numbers mean, such as `x pybase64` or `MiB`.
    """

    work: str
    ratio: float
    bound: float
    unit: str


def interleaved(
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    rounds: int = 60,
    inner: int = 1,
) -> float:
    """Return the time of `ours` divided by the time of `peer`.

    Both run by turns, changing who goes first, after a warm-up, with the garbage collector off.
    The result is the median over the rounds of each round's own ratio: what disturbs a round
    mostly disturbs both of its halves.

    Args:
        ours: The work that has a bound.
        peer: The same work done the other way.
        rounds: How many pairs to measure.
        inner: How often each half repeats its work, for work of less than some microseconds.
    """
    for _ in range(max(3, rounds // 10)):
        _seconds(ours, inner)
        _seconds(peer, inner)
    ratios = []
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            if turn % 2:
                mine = _seconds(ours, inner)
                other = _seconds(peer, inner)
            else:
                other = _seconds(peer, inner)
                mine = _seconds(ours, inner)
            ratios.append(mine / other)
    finally:
        if was_enabled:
            gc.enable()
    return statistics.median(ratios)


def _seconds(work: Callable[[], object], inner: int) -> float:
    repeat = range(inner)
    start = time.perf_counter()
    for _ in repeat:
        work()
    return time.perf_counter() - start


def own_memory_bytes(field: str = "VmRSS") -> int:
    """Return a memory figure of this process: `VmRSS` now, `VmHWM` at its peak.

    Write `5` to `/proc/self/clear_refs` (`reset_peak`) to start a new peak.
    """
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise LookupError(field)


def reset_peak() -> None:
    """Start a new peak of `own_memory_bytes("VmHWM")`."""
    with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")
