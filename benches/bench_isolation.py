"""Sandboxes and commands: time to start, and why commands are forked from a porter.

The ways to start a command are measured in turn within one loop, so that a busy machine slows all
of them alike. As root the sandboxes belong to a numeric user, as in a service that root started.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benches._harness import Row

from agent_sandbox.express.isolation import (
    RunningSandbox,
    SandboxConfig,
    Spawner,
    find_bubblewrap,
    kernel,
    prepare_directory,
    rootfs,
)

ROOT = os.geteuid() == 0
USER = 61_234 if ROOT else os.geteuid()
ROUNDS = 40
FIRST_BYTE_MS = 60.0
COMMAND_MS = 15.0
ALIVE = 100
NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWNET
)


@contextlib.contextmanager
def public_directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="as-bench-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def make_directory(base: Path) -> int:
    path = tempfile.mkdtemp(dir=base)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    prepare_directory(fd)
    for entry in [Path(path), *Path(path).rglob("*")]:
        os.chown(entry, USER, USER, follow_symlinks=False)
    return fd


async def command(sandbox: RunningSandbox, *argv: str) -> bytes:
    process = await sandbox.spawn(list(argv))
    said = await read_some(process.stdout)
    assert await process.wait() == 0
    process.close()
    return said


async def read_some(fd: int) -> bytes:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    await ready.wait()
    loop.remove_reader(fd)
    return os.read(fd, 100)


def enter_anew(pidfd: int) -> None:
    """Start /bin/true by joining the namespaces in a fresh process."""
    child = os.fork()
    if child == 0:
        if ROOT:
            os.setresuid(USER, USER, USER)
        kernel.enter_namespaces(pidfd, NAMESPACES)
        grandchild = os.fork()
        if grandchild == 0:
            kernel.drop_privileges()
            os.execv("/bin/true", ["true"])  # noqa: S606
        os._exit(os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]))
    assert os.waitpid(child, 0)[1] == 0


def fresh_bubblewrap(directory: str) -> None:
    arguments = rootfs.bubblewrap_arguments(
        directory, network=False, info_fd=0, seccomp_fd=0, etc_fd=0
    )
    place = arguments.index("--tmpfs", arguments.index("--remount-ro")) - 4  # all but /etc
    subprocess.run(
        [str(find_bubblewrap()), *arguments[:place], "--", "/bin/true"],
        user=USER if ROOT else None,
        extra_groups=[] if ROOT else None,
        check=True,
        timeout=20,
    )


def start_spawner() -> Spawner:
    return Spawner.launch(user=USER if ROOT else None)


async def command_times(base: Path) -> dict[str, list[float]]:
    """Start /bin/true in three ways, in turn."""
    spawner = start_spawner()
    directory = make_directory(base)
    sandbox = await spawner.start(SandboxConfig(directory))
    path = os.readlink(f"/proc/self/fd/{directory}")
    times: dict[str, list[float]] = {"porter": [], "setns": [], "bubblewrap": []}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        await command(sandbox, "/bin/true")
        times["porter"].append(time.perf_counter() - began)
        began = time.perf_counter()
        enter_anew(sandbox._first_fd)
        times["setns"].append(time.perf_counter() - began)
        began = time.perf_counter()
        fresh_bubblewrap(path)
        times["bubblewrap"].append(time.perf_counter() - began)
    await sandbox.stop()
    await spawner.close()
    os.close(directory)
    return times


async def first_byte_times(base: Path) -> list[float]:
    """From an empty directory to the first byte that a command says."""
    spawner = start_spawner()
    await (await spawner.start(SandboxConfig(make_directory(base)))).stop()
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        directory = make_directory(base)
        sandbox = await spawner.start(SandboxConfig(directory))
        assert await command(sandbox, "echo", "hi") == b"hi\n"
        times.append(time.perf_counter() - began)
        await sandbox.stop()
        os.close(directory)
    await spawner.close()
    return times


async def hundred(base: Path) -> tuple[float, float, float]:
    """Return seconds to bring 100 sandboxes up at once, to end them, and private MiB of each."""
    spawner = start_spawner()
    directories = [make_directory(base) for _ in range(ALIVE)]
    began = time.perf_counter()
    started = (spawner.start(SandboxConfig(fd), deadline_s=60) for fd in directories)
    alive = list(await asyncio.gather(*started))
    await asyncio.gather(*(command(sandbox, "echo", "hi") for sandbox in alive))
    up = time.perf_counter() - began
    memory = sum(_private_bytes(sandbox._porter_fd) for sandbox in alive) / ALIVE
    began = time.perf_counter()
    await asyncio.gather(*(sandbox.stop() for sandbox in alive))
    down = time.perf_counter() - began
    await spawner.close()
    for fd in directories:
        os.close(fd)
    return up, down, memory / 1_048_576


def _private_bytes(pidfd: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    pid = next(line.split()[1] for line in lines if line.startswith("Pid:"))
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_"))


def rows() -> Iterator[Row]:
    """Yield the bounds. Those in ms are promises of the service, with room for a slow machine."""
    with public_directory() as base:
        times = {name: statistics.median(v) for name, v in asyncio.run(command_times(base)).items()}
        yield Row("/bin/true in a running sandbox", times["porter"] * 1000, COMMAND_MS, "ms")
        for peer in ("setns", "bubblewrap"):
            ratio = times["porter"] / times[peer]
            yield Row("/bin/true in a running sandbox", ratio, 0.9, f"x {peer} each time")
        first = statistics.median(asyncio.run(first_byte_times(base)))
        yield Row("new sandbox to first byte", first * 1000, FIRST_BYTE_MS, "ms")
        up, down, memory = asyncio.run(hundred(base))
        yield Row(f"{ALIVE} sandboxes up at once, one command each", up, 10.0, "s")
        yield Row(f"{ALIVE} sandboxes down", down, 5.0, "s")
        yield Row("private memory of a porter", memory, 4.0, "MiB")
