"""Sandboxes and commands through the whole stack: the SDK, HTTP, Express, bubblewrap.

Absolute times, in ms, since issue 3 bounds those; the bench of the isolation layer has the ratios.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

from benches._harness import Row

from agent_sandbox import SandboxClient
from agent_sandbox.client.providers import local

ROUNDS = 30
FIRST_BYTE_MS = 60.0
COMMAND_MS = 15.0
UP_MS = 1_000.0


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


def rows() -> Iterator[Row]:
    try:
        up, to_byte, commands = asyncio.run(times())
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
