"""A command by itself, with a real process and real pipes: who reads late misses nothing."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
import tty
from typing import cast

import pytest

from agent_sandbox.express.isolation import Process
from agent_sandbox.express.processes import watcher as watcher_module
from agent_sandbox.express.processes.command import Command
from agent_sandbox.wire.process import ProcessConfig


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
        for fd in set(given):
            os.close(fd)

    def detach(self, attribute: str) -> int:
        return self._fds.pop(attribute, -1)

    async def wait(self) -> int:
        return await asyncio.to_thread(self._process.wait)

    def close(self) -> None:
        assert not self._fds


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
