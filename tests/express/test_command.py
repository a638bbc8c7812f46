"""Commands by themselves, with real processes and pipes: readers that are behind, names, bounds."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import tty
from collections.abc import AsyncIterator
from typing import cast

import pytest

from agent_sandbox.errors import (
    ProcessNotFoundError,
    SandboxUnavailableError,
    ServiceBusyError,
)
from agent_sandbox.express.isolation import Process, RunningSandbox
from agent_sandbox.express.processes import command as command_module
from agent_sandbox.express.processes import commands as commands_module
from agent_sandbox.express.processes import watcher as watcher_module
from agent_sandbox.express.processes.command import Command
from agent_sandbox.express.processes.commands import Commands
from agent_sandbox.wire.process import ProcessConfig, ProcessSelector, StartRequest


class Spawned:
    """A process without a sandbox, as `Command` holds one."""

    def __init__(self, line: str, *, terminal: bool) -> None:
        if terminal:
            ours, theirs = pty.openpty()
            tty.setraw(theirs)
            self._fds = {"terminal": ours}
            given = (theirs, theirs, theirs)
        else:
            stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
            self._fds = {"stdin": stdin[1], "stdout": stdout[0], "stderr": stderr[0]}
            given = (stdin[0], stdout[1], stderr[1])
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", line],
            stdin=given[0],
            stdout=given[1],
            stderr=given[2],
            start_new_session=True,
        )
        self.pid = self._process.pid
        _running.append(self)
        for fd in set(given):
            os.close(fd)

    def detach(self, attribute: str) -> int:
        return self._fds.pop(attribute, -1)

    async def wait(self) -> int:
        return await asyncio.to_thread(self._process.wait)

    def kill_tree(self) -> None:
        self._process.kill()

    def close(self) -> None:
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()


_running: list[Spawned] = []


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """End what a test that fails leaves: threads wait for it, and the end of the loop for them."""
    yield
    while _running:
        _running.pop().kill_tree()


class Running:
    """The part of a sandbox that `Commands` uses.

    Args:
        pids: Numbers that its commands get in place of their own.
    """

    def __init__(self, *pids: int) -> None:
        self._pids = list(pids)
        self.spawned: list[Spawned] = []
        self.asked = asyncio.Event()
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def spawn(self, argv: list[str], **_: object) -> Spawned:
        self.asked.set()
        await self.go_on.wait()
        one = Spawned("exec " + " ".join(argv), terminal=False)
        if self._pids:
            one.pid = self._pids.pop(0)
        self.spawned.append(one)
        return one


def commands_of(running: Running) -> Commands:
    return Commands(cast(RunningSandbox, running), {}, lambda: None)


def sleeping(tag: str | None = None) -> StartRequest:
    return StartRequest(process=ProcessConfig(cmd="sleep", args=["1000"]), tag=tag)


async def ended(spawned: Spawned) -> int:
    async with asyncio.timeout(20):
        return await spawned.wait()


@pytest.mark.parametrize("terminal", [True, False])
async def test_a_reader_that_is_full_at_the_end_misses_nothing(
    monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    """When the command ends its output waits in a pipe, or a terminal: that gives 4 KiB a read."""
    monkeypatch.setattr(watcher_module, "MAX_WAITING_BYTES", 1)
    ended = asyncio.Event()
    spawned = Spawned("head -c 9000 /dev/zero", terminal=terminal)
    command = Command(cast(Process, spawned), ProcessConfig(cmd="sh"), None, lambda _: ended.set())
    watcher = command.watch(replay=False, limit_bytes=None)
    async with asyncio.timeout(20):
        await ended.wait()
        seen = 0
        while (chunk := await watcher.next()) is not None:
            seen += len(chunk.data)
    assert (command.code, seen) == (0, 9_000)
    command.close()


async def test_a_reader_that_came_while_the_command_waited_does_not_hold_it_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher_module, "MAX_WAITING_BYTES", 1)
    monkeypatch.setattr(command_module, "STALL_S", 0.05)
    over = asyncio.Event()
    spawned = Spawned("head -c 1000000 /dev/zero", terminal=False)
    command = Command(cast(Process, spawned), ProcessConfig(cmd="sh"), None, lambda _: over.set())
    watchers = [command.watch(replay=False, limit_bytes=None)]
    async with asyncio.timeout(20):
        while not watchers[0].full:  # noqa: ASYNC110 - it tells its reader alone
            await asyncio.sleep(0)
        watchers.append(command.watch(replay=True, limit_bytes=None))
        assert watchers[1].full
        await over.wait()
    assert [one.dropped for one in watchers] == [True, True]
    command.close()


async def test_a_start_that_the_end_of_the_sandbox_overtakes_leaves_nothing_running() -> None:
    running = Running()
    running.go_on.clear()
    commands = commands_of(running)
    start = asyncio.get_running_loop().create_task(commands.start(sleeping()))
    async with asyncio.timeout(20):
        await running.asked.wait()
        commands.close()
        running.go_on.set()
        with pytest.raises(SandboxUnavailableError):
            await start
    assert await ended(running.spawned[0]) == -9
    assert list(commands) == []


async def test_a_number_that_is_given_again_names_the_new_command_alone() -> None:
    running = Running(7, 7)
    commands = commands_of(running)
    await commands.start(sleeping())
    running.spawned[0].kill_tree()
    async with asyncio.timeout(20):
        while not commands.ended:  # noqa: ASYNC110 - the kernel tells its parent alone
            await asyncio.sleep(0.001)
    again = await commands.start(sleeping())
    assert [*commands, *commands.ended] == [again]
    assert commands.find(ProcessSelector(pid=7), ended=True) is again
    again.kill()
    assert await ended(running.spawned[1]) == -9
    commands.close()
    with pytest.raises(ProcessNotFoundError):
        commands.find(ProcessSelector(pid=7), ended=True)


async def test_of_two_with_one_tag_the_newer_is_meant_and_their_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands_module, "MAX_RUNNING", 2)
    running = Running()
    commands = commands_of(running)
    _, newer = [await commands.start(sleeping("t")) for _ in range(2)]
    assert commands.find(ProcessSelector(tag="t")) is newer
    with pytest.raises(ServiceBusyError):
        await commands.start(sleeping())
    assert len(running.spawned) == 2
    commands.close()
    for one in running.spawned:
        one.kill_tree()
        assert await ended(one) == -9
