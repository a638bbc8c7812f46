"""Many at once: 32 sandboxes that each take and give 1 MiB, and how soon others are answered.

The time to an answer of `/health`, asked by a process of its own, is the lag of the service's event
loop and what the machine adds to it: an upper bound.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from benches._harness import Row
from benches.soak import service

from agent_sandbox import Sandbox, SandboxClient
from agent_sandbox.errors import AgentSandboxError

SANDBOXES = 32
ROUNDS = 4
SIZE_BYTES = 1_048_576
LAG_MS = 50.0
PATH = "/tmp/load.bin"  # noqa: S108 - in the sandbox

PING = """
import http.client, select, sys, time
connection = http.client.HTTPConnection(sys.argv[1])
took = []
while not select.select([sys.stdin], [], [], 0.005)[0]:
    began = time.perf_counter()
    connection.request("GET", "/health")
    connection.getresponse().read()
    took.append(time.perf_counter() - began)
took.sort()
print(took[int(len(took) * 0.99)] * 1e3)
"""


async def traffic(url: str) -> int:
    """Return how many transfers failed."""
    failed = 0
    async with SandboxClient(provider="express", api_url=url) as client:
        sandboxes = await asyncio.gather(*(client.create() for _ in range(SANDBOXES)))

        async def use(sandbox: Sandbox) -> None:
            nonlocal failed
            data = os.urandom(SIZE_BYTES)
            for _ in range(ROUNDS):
                try:
                    await sandbox.files.write(PATH, data)
                    failed += await sandbox.files.read_bytes(PATH, max_bytes=SIZE_BYTES) != data
                except AgentSandboxError:
                    failed += 1

        await asyncio.gather(*map(use, sandboxes))
        await asyncio.gather(*(one.kill() for one in sandboxes))
    return failed


def rows() -> Iterator[Row]:
    with (
        tempfile.TemporaryDirectory() as directory,
        service("serve", "--port", "0", "--state-dir", f"{directory}/s") as (_, url),
        subprocess.Popen(
            [sys.executable, "-c", PING, url.removeprefix("http://")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as ping,
    ):
        failed = asyncio.run(traffic(url))
        lag_ms = float(ping.communicate(timeout=30)[0])
    work = f"{SANDBOXES} sandboxes x {ROUNDS} x 1 MiB up and down"
    yield Row(f"{work}: what fails", failed, 0, "transfers")
    yield Row(f"{work}: p99 to an answer", lag_ms, LAG_MS, "ms")
