"""Mixed traffic for a long time: nothing may pile up. `make soak`, `SOAK_SECONDS` (7,200).

Two services run: `agent-sandbox serve` under our SDK, and `agent-sandbox mcp --transport http` with
its embedded service under the official MCP client. After a quarter of the time, two minutes at
most, everything is ended and measured, and once more at the end. Each process that was there both
times may have 5 descriptors and 8 MiB more; no other one, and no directory of a sandbox, may be
left but the spares.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import hashlib
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from mcp import Client

from agent_sandbox import Sandbox, SandboxClient
from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.memory import GIVE_BACK_S
from agent_sandbox.models import FileMissingError, FileSizeLimitError

MORE_DESCRIPTORS = 5
MORE_BYTES = 8 * 2**20
WARM_S = 120.0
WORKERS = 6
SESSIONS = 2
START_S = 60.0
QUIET_S = 60.0
MIB = 2**20

Traffic = Callable[[Sandbox, random.Random], Awaitable[None]]


async def files(sandbox: Sandbox, chance: random.Random) -> None:
    """Files of every size, up and down, compared by their digests."""
    data = chance.randbytes(chance.choice([0, 1, 70_000, MIB, 3 * MIB]))
    path = f"/tmp/soak/{chance.randrange(8)}"  # noqa: S108 - in the sandbox
    await sandbox.files.write(path, data)
    found = await sandbox.files.read_bytes(path, max_bytes=len(data))
    assert hashlib.sha256(found).digest() == hashlib.sha256(data).digest(), "another content"
    assert path in [one.path for one in await sandbox.files.list("/tmp/soak")]  # noqa: S108 - as above
    await sandbox.files.remove(path)


async def failures(sandbox: Sandbox, chance: random.Random) -> None:
    """What is refused: it may leave as little as what succeeds."""
    with contextlib.suppress(FileMissingError):
        await sandbox.files.read_bytes("/none")
    await sandbox.files.write("/big", bytes(MIB))
    with contextlib.suppress(FileSizeLimitError):
        await sandbox.files.read_bytes("/big", max_bytes=chance.randrange(MIB))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(chance.random() / 20):
            await sandbox.files.write("/broken", bytes(8 * MIB))


async def commands(sandbox: Sandbox, chance: random.Random) -> None:
    """Commands that end, that are left alone, that are killed, and that outlive their caller."""
    size = chance.randrange(200_000)
    done = await sandbox.commands.run(["head", "-c", str(size), "/dev/zero"])
    assert (done.exit_code, len(done.stdout)) == (0, size)
    assert (await sandbox.commands.run("sleep 60 & exit 3")).exit_code == 3
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(chance.random() / 5):
            await sandbox.commands.run("sleep 60")
    started = await sandbox.commands.start("cat", stdin=True)
    await started.send_stdin("x" * 1_000)
    if chance.random() < 0.5:
        await started.close_stdin()
        assert (await started.wait()).exit_code == 0
    else:
        await started.kill()


async def watches(sandbox: Sandbox, chance: random.Random) -> None:
    """Watches that see something, and are left in the middle."""
    async with sandbox.files.watch("/tmp", recursive=True) as events:  # noqa: S108 - in the sandbox
        await sandbox.files.write(f"/tmp/w{chance.randrange(4)}", b"x")  # noqa: S108 - as above
        async for _ in events:
            break


SDK: tuple[Traffic, ...] = (files, files, failures, commands, watches)


@dataclass
class Soak:
    """The traffic so far.

    Attributes:
        url: Of the service for the SDK.
        mcp_url: Of the MCP server.
        done: How often each kind of traffic succeeded.
        failed: What failed, by its error's code.
    """

    url: str
    mcp_url: str
    done: Counter[str]
    failed: Counter[str]

    async def run(self, seconds: float) -> None:
        """Make traffic for so long, then end everything."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            for number in range(WORKERS):
                chance = random.Random(number)  # noqa: S311 - traffic that can be repeated
                tasks.create_task(self._use_sdk(chance, until))
            for number in range(SESSIONS):
                chance = random.Random(-1 - number)  # noqa: S311 - as above
                tasks.create_task(self._use_mcp(chance, until))

    async def _use_sdk(self, chance: random.Random, until: float) -> None:
        while time.monotonic() < until:
            async with SandboxClient(provider="express", api_url=self.url) as client:
                sandbox = await client.create()
                for _ in range(chance.randrange(1, 8)):
                    traffic = chance.choice(SDK)
                    try:
                        await traffic(sandbox, chance)
                    except AgentSandboxError as error:
                        self.failed[f"{traffic.__name__} {error.code}"] += 1
                    else:
                        self.done[traffic.__name__] += 1
                await sandbox.kill()

    async def _use_mcp(self, chance: random.Random, until: float) -> None:
        while time.monotonic() < until:
            async with Client(self.mcp_url, mode="legacy", read_timeout_seconds=60) as client:
                for _ in range(chance.randrange(1, 6)):
                    data = chance.randbytes(chance.choice([1, 70_000, MIB]))
                    up: dict[str, Any] = {"path": "/tmp/m"}  # noqa: S108 - in the sandbox
                    up["content_base64"] = base64.b64encode(data).decode()
                    for tool, arguments in (
                        ("upload_file", up),
                        ("run_command", {"command": "wc -c < /tmp/m"}),
                        ("download_file", {"path": "/tmp/m"}),  # noqa: S108 - as above
                    ):
                        answer = await client.call_tool(tool, arguments)
                        (self.failed if answer.is_error else self.done)[tool] += 1


@dataclass(frozen=True)
class Measured:
    """One process at rest."""

    name: str
    descriptors: int
    resident_bytes: int


def long_lived(roots: list[psutil.Process]) -> dict[int, Measured]:
    """Measure the services, their helpers, and what stands ready."""
    found = {}
    for root in roots:
        for one in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                name = " ".join(one.cmdline()[2:4]).strip() or one.name()  # after python -m
                found[one.pid] = Measured(name, one.num_fds(), one.memory_info().rss)
    return found


def at_rest(roots: list[psutil.Process]) -> dict[int, Measured]:
    """Measure once the processes have been the same for a moment."""
    gc.collect()
    time.sleep(GIVE_BACK_S * 1.5)  # what is kept for the next call goes back meanwhile
    end = time.monotonic() + QUIET_S
    seen, since = long_lived(roots), time.monotonic()
    while time.monotonic() - since < 3 and time.monotonic() < end:
        time.sleep(0.25)
        now = long_lived(roots)
        if now.keys() != seen.keys():
            since = time.monotonic()
        seen = now
    return seen


def complaints(first: dict[int, Measured], last: dict[int, Measured]) -> Iterator[str]:
    """Yield what has grown."""
    for pid in first.keys() & last.keys():
        before, after = first[pid], last[pid]
        descriptors = after.descriptors - before.descriptors
        grown = after.resident_bytes - before.resident_bytes
        line = f"{before.name} ({pid}): {descriptors:+} descriptors, {grown / MIB:+.1f} MiB"
        print("  " + line, flush=True)
        if descriptors > MORE_DESCRIPTORS or grown > MORE_BYTES:
            yield line
    if len(last) > len(first):
        yield f"{len(last)} processes, formerly {len(first)}"


@contextlib.contextmanager
def service(*arguments: str, from_stderr: bool = False) -> Iterator[tuple[psutil.Process, str]]:
    """Run a command of ours and return it with the URL that it prints."""
    kept = {name: value for name, value in os.environ.items() if "SANDBOX" not in name}
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_sandbox", *arguments],
        stdout=subprocess.DEVNULL if from_stderr else subprocess.PIPE,
        stderr=subprocess.PIPE if from_stderr else subprocess.DEVNULL,
        env=kept | {"XDG_STATE_HOME": tempfile.gettempdir()},
    )
    stream = process.stderr if from_stderr else process.stdout
    assert stream is not None
    try:
        assert select.select([stream], [], [], START_S)[0], "it did not start"
        url = next(word for word in stream.readline().decode().split() if "://" in word)
        yield psutil.Process(process.pid), url.rstrip(".,")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)
        stream.close()


def main() -> int:
    """Soak, and return 1 where something has grown or failed."""
    seconds = float(os.environ.get("SOAK_SECONDS", "7200"))
    warm = min(WARM_S, seconds / 4)
    with (
        tempfile.TemporaryDirectory() as directory,
        service("serve", "--port", "0", "--state-dir", str(Path(directory) / "s")) as (serve, url),
        service("mcp", "--transport", "http", "--port", "0", from_stderr=True) as (mcp, mcp_url),
    ):
        soak = Soak(url, mcp_url, Counter(), Counter())
        asyncio.run(soak.run(warm))
        first = at_rest([serve, mcp])
        asyncio.run(soak.run(seconds - warm))
        last = at_rest([serve, mcp])
        print(f"{sum(soak.done.values())} pieces of work: {dict(soak.done)}")
        grown = [*complaints(first, last)]
        grown += [f"failed {count} times: {what}" for what, count in soak.failed.items()]
        left = [one for one in Path(directory).glob("s/instances/*/*") if one.is_dir()]
        if len(left) > 2:
            grown.append(f"{len(left)} directories of sandboxes")
    print("\n".join(grown) or "nothing has grown")
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
