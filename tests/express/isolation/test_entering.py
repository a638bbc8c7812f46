"""A process between its fork in the porter and its exec shows nothing and cannot be traced."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
from pathlib import Path

import pytest

from agent_sandbox.errors import SandboxUnavailableError
from agent_sandbox.express.isolation import Process, RunningSandbox, messages
from agent_sandbox.express.isolation.process import Pipes

_FULL_PIPE_BYTES = 4096


async def output(process: Process) -> str:
    def read() -> bytes:
        with open(process.detach("stdout"), "rb") as stream:
            return stream.read()

    try:
        return (await asyncio.to_thread(read)).decode(errors="replace")
    finally:
        await process.wait()
        process.close()


class Held:
    """A command that stands still just before its exec: nobody empties its status pipe."""

    def __init__(self, sandbox: RunningSandbox) -> None:
        self.sandbox = sandbox
        self.pipes = Pipes(terminal=False, stdin=False)
        self.number = 1_000_000
        status = self.pipes.theirs[0]
        fcntl.fcntl(status, fcntl.F_SETPIPE_SZ, _FULL_PIPE_BYTES)
        os.write(status, bytes(_FULL_PIPE_BYTES))
        self.answer: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()

    async def enter(self) -> None:
        self.sandbox._waiting[self.number] = self.answer
        request = {"op": "spawn", "id": self.number, "argv": ["/bin/true"], "env": {}, "cwd": "/"}
        self.sandbox._send(request, self.pipes.theirs)
        async with asyncio.timeout(10):
            await self.answer

    def close(self) -> None:
        messages.close_all(self.answer.result())
        self.pipes.close()


async def pid_inside(sandbox: RunningSandbox) -> str:
    found = await output(
        await sandbox.spawn(
            ["grep", "-lx", "sandbox", "-r", "/proc", "-s", "--include=comm", "--exclude-dir=task"]
        )
    )
    return str(re.findall(r"/proc/(\d+)/comm", found)[0])


@pytest.fixture
async def held(sandbox: RunningSandbox) -> Held:
    made = Held(sandbox)
    await made.enter()
    return made


async def test_an_entering_process_shows_nothing(sandbox: RunningSandbox, held: Held) -> None:
    try:
        pid = await pid_inside(sandbox)
        script = f"cd /proc/{pid} && for i in exe cwd root; do readlink $i; done; ls fd; cat "
        script += "environ maps mem auxv stack; cat cmdline; echo end"
        shown = await output(await sandbox.spawn(["/bin/sh", "-c", script]))
        assert shown.strip("\0") == "end\n"
        host = Path(f"/proc/{_host_pid(held.answer.result()[0])}")
        assert (host / "cmdline").read_bytes().strip(b"\0") == b""
    finally:
        held.close()


async def test_an_entering_process_cannot_be_traced(sandbox: RunningSandbox, held: Held) -> None:
    attach = "print syscall({nr}, 16, 0 + $ARGV[0], 0, 0), ' ', $!+0".format(
        nr={"x86_64": 101, "aarch64": 117}[os.uname().machine]
    )
    try:
        pid = await pid_inside(sandbox)
        assert await output(await sandbox.spawn(["/usr/bin/perl", "-e", attach, pid])) == "-1 1"
        # The instrument works: an ordinary command of the same sandbox can be traced.
        other = await sandbox.spawn(["sleep", "60"])
        tried = ["/usr/bin/perl", "-e", attach, str(other.pid)]
        assert (await output(await sandbox.spawn(tried))).startswith("0 ")
        other.kill_tree()
        await other.wait()
        other.close()
    finally:
        held.close()


async def test_killing_an_entering_process_ends_that_command_alone(
    sandbox: RunningSandbox, held: Held
) -> None:
    # It has the sandbox's user, so a kill from inside reaches it, as it will reach the command.
    try:
        pid = await pid_inside(sandbox)
        await output(await sandbox.spawn(["/bin/sh", "-c", f"kill -9 {pid}"]))
        assert await output(await sandbox.spawn(["echo", "on"])) == "on\n"
    finally:
        held.close()


async def test_a_command_killed_before_its_exec_is_a_clear_error(sandbox: RunningSandbox) -> None:
    starting = asyncio.create_task(sandbox.spawn(["/bin/true"]))
    await asyncio.sleep(0)
    assert sandbox._waiting
    sandbox.disconnect()
    with pytest.raises(SandboxUnavailableError):
        await starting


def _host_pid(pidfd: int) -> int:
    lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))
