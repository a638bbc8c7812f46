"""The public E2B SDK runs commands and terminals in `agent-sandbox serve`, sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize
from tests.support.express import wait_until

WAIT_S = 10


@pytest.fixture
def sandbox(options: dict[str, Any]) -> Iterator[Sandbox]:
    sandbox = Sandbox.create(timeout=120, envs={"FROM_CREATE": "yes"}, **options)
    yield sandbox
    sandbox.kill()


@pytest.fixture
async def async_sandbox(options: dict[str, Any]) -> AsyncIterator[AsyncSandbox]:
    sandbox = await AsyncSandbox.create(timeout=120, **options)
    yield sandbox
    await sandbox.kill()


def test_a_command_gives_its_output_and_its_status(sandbox: Sandbox) -> None:
    out: list[str] = []
    err: list[str] = []
    done = sandbox.commands.run(
        'echo "$GREETING $FROM_CREATE"; echo oh >&2; pwd',
        envs={"GREETING": "hällo"},
        cwd="/tmp",
        user="root",
        on_stdout=out.append,
        on_stderr=err.append,
    )
    assert (done.stdout, done.stderr, done.exit_code) == ("hällo yes\n/tmp\n", "oh\n", 0)
    assert "".join(out) == done.stdout
    assert "".join(err) == done.stderr
    with pytest.raises(CommandExitException) as failed:
        sandbox.commands.run("echo partly; exit 3")
    assert (failed.value.exit_code, failed.value.stdout) == (3, "partly\n")
    with pytest.raises(CommandExitException) as missing:
        sandbox.commands.run("no-such-program")
    assert missing.value.exit_code == 127
    with pytest.raises(NotFoundException):
        sandbox.commands.run("true", cwd="/no/such/directory")


def test_files_and_commands_are_one_tree(sandbox: Sandbox) -> None:
    sandbox.files.write("/tmp/a", "from the files")
    assert sandbox.commands.run("cat /tmp/a").stdout == "from the files"
    sandbox.commands.run("echo from a command > /home/user/b")
    assert sandbox.files.read("b") == "from a command\n"


def test_a_background_command_is_listed_fed_watched_and_killed(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("cat", background=True, stdin=True, envs={"A": "b"})
    listed = {one.pid: one for one in sandbox.commands.list()}
    assert listed[handle.pid].args == ["-l", "-c", "cat"]
    assert listed[handle.pid].envs == {"A": "b"}
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "hello\n")
    sandbox.commands.stream_input(handle.pid, ["one ", b"two\n"])
    sandbox.commands.close_stdin(handle.pid)
    assert again.wait().stdout == "hello\none two\n"
    assert not sandbox.commands.kill(handle.pid)
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(handle.pid)
    sleeper = sandbox.commands.run("sleep 1000", background=True)
    assert sandbox.commands.kill(sleeper.pid)
    with pytest.raises(CommandExitException) as killed:
        sleeper.wait()
    assert (killed.value.exit_code, killed.value.error) == (-1, "signal: killed")
    assert sandbox.commands.list() == []


def test_time_that_is_over_kills_the_whole_group(sandbox: Sandbox) -> None:
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 1000 & sleep 1000", timeout=0.5)
    # One is pid 1, which only waits.
    wait_until(lambda: sandbox.commands.run("pgrep -c sleep").stdout == "1\n")


def test_a_terminal_takes_input_and_another_size(sandbox: Sandbox) -> None:
    handle = sandbox.pty.create(PtySize(rows=24, cols=80))
    sandbox.pty.resize(handle.pid, PtySize(rows=40, cols=100))
    sandbox.pty.send_stdin(handle.pid, b"stty size; exit 7\n")
    shown: list[bytes] = []
    with pytest.raises(CommandExitException) as ended:
        handle.wait(on_pty=shown.append)
    assert ended.value.exit_code == 7
    assert b"40 100" in b"".join(shown)
    other = sandbox.pty.create(PtySize(rows=24, cols=80))
    assert sandbox.pty.kill(other.pid)
    assert not sandbox.pty.kill(handle.pid)


def test_wrong_input_is_named(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 1000", background=True)
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.send_stdin(handle.pid, "nobody reads")
    with pytest.raises(NotFoundException):
        sandbox.commands.send_stdin(99_999, "nobody is there")
    handle.kill()


def test_the_end_of_the_sandbox_ends_its_streams(sandbox: Sandbox) -> None:
    handle = sandbox.commands.run("sleep 1000", background=True)
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            handle.wait()
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    sandbox.kill()
    waiting.join(WAIT_S)
    assert not waiting.is_alive()
    assert [type(error).__name__ for error in failures] == ["SandboxNotRunningException"]


async def test_the_async_sdk_does_the_same(async_sandbox: AsyncSandbox) -> None:
    commands = async_sandbox.commands
    done = await commands.run("echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")
    handle = await commands.run("cat", background=True, stdin=True)
    assert [one.pid for one in await commands.list()] == [handle.pid]
    await commands.send_stdin(handle.pid, "hello\n")
    async with commands.stream_input(handle.pid) as streamed:
        await streamed.send("again\n")
    await commands.close_stdin(handle.pid)
    async with asyncio.timeout(WAIT_S):
        assert (await handle.wait()).stdout == "hello\nagain\n"
    shown: list[bytes] = []
    pty = await async_sandbox.pty.create(PtySize(rows=24, cols=80), on_data=shown.append)
    await async_sandbox.pty.resize(pty.pid, PtySize(rows=30, cols=90))
    await async_sandbox.pty.send_stdin(pty.pid, b"stty size; exit\n")
    async with asyncio.timeout(WAIT_S):
        assert (await pty.wait()).exit_code == 0
    assert b"30 90" in b"".join(shown)
    with pytest.raises(TimeoutException):
        await commands.run("sleep 1000", timeout=0.3)
    sleeper = await commands.run("sleep 1000", background=True)
    assert await sleeper.kill()
