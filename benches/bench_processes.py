"""Sandboxes and commands through the whole stack: the SDK, HTTP, Express, bubblewrap.

Absolute times, in ms, since issue 3 bounds those; the bench of the isolation layer has the ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

import psutil
from benches._harness import Row

from agent_sandbox import Sandbox, SandboxClient
from agent_sandbox.client.providers import local
from agent_sandbox.express.state import default_state_dir

ROUNDS = 30
FIRST_BYTE_MS = 60.0
COMMAND_MS = 15.0
UP_MS = 1_000.0
CROWD = 100
ENDED_S = 10.0
GIVE_UP_S = 60.0


async def times() -> tuple[float, list[float], list[float]]:
    began = time.perf_counter()
    async with SandboxClient(provider="local") as client:
        first = await client.create()
        up = time.perf_counter() - began
        await first.kill()
        to_byte, commands = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            sandbox = await client.create()
            assert (await sandbox.commands.run(["echo", "x"])).stdout == "x\n"
            to_byte.append(time.perf_counter() - began)
            await sandbox.kill()
        sandbox = await client.create()
        for _ in range(ROUNDS * 4):
            began = time.perf_counter()
            assert (await sandbox.commands.run(["/bin/true"])).exit_code == 0
            commands.append(time.perf_counter() - began)
        await sandbox.kill()
    return up, to_byte, commands


async def settled(service: psutil.Process) -> int:
    """Return how many processes the service keeps at rest: what it holds ready comes by and by."""
    count, before = len(service.children(recursive=True)), -1
    while count != before:
        await asyncio.sleep(0.5)
        count, before = len(service.children(recursive=True)), count
    return count


async def crowd() -> tuple[int, float]:
    """Return how many of many sandboxes alive at once failed, and how long their end took, in s."""
    async with SandboxClient(provider="local") as client:
        await (await client.create()).kill()
        children = psutil.Process().children()
        (service,) = (one for one in children if "agent_sandbox.express" in one.cmdline())
        spares = await settled(service)
        at_once = asyncio.Semaphore(8)

        async def made() -> Sandbox:
            async with at_once:
                return await client.create()

        sandboxes = await asyncio.gather(*(made() for _ in range(CROWD)))

        async def answers(sandbox: Sandbox) -> bool:
            async with at_once:
                return (await sandbox.commands.run(["echo", "x"])).stdout == "x\n"

        good = await asyncio.gather(*map(answers, sandboxes), return_exceptions=True)
        began = time.perf_counter()
        await asyncio.gather(*(one.kill() for one in sandboxes))
        state = default_state_dir()
        directories = [f"instances/*/{one.sandbox_id}" for one in sandboxes]
        directories += [f"dead/{one.sandbox_id}" for one in sandboxes]

        def left() -> bool:
            return len(service.children(recursive=True)) > spares or any(
                found for pattern in directories for found in state.glob(pattern)
            )

        while left() and time.perf_counter() - began < GIVE_UP_S:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.05)
        return CROWD - good.count(True), time.perf_counter() - began


def rows() -> Iterator[Row]:
    try:
        up, to_byte, commands = asyncio.run(times())
        failed, ended = asyncio.run(crowd())
    finally:
        local.stop()
    yield Row("Express up, with its first sandbox", up * 1e3, UP_MS, "ms")
    yield Row(
        "create to first byte of a new sandbox",
        statistics.median(to_byte) * 1e3,
        FIRST_BYTE_MS,
        "ms",
    )
    yield Row("/bin/true in a running sandbox", statistics.median(commands) * 1e3, COMMAND_MS, "ms")
    yield Row(f"of {CROWD} sandboxes alive at once do not answer", failed, 0, "sandboxes")
    yield Row(f"{CROWD} sandboxes killed, until nothing of them is left", ended, ENDED_S, "s")
