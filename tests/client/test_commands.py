"""`sandbox.commands` on both surfaces, against the embedded Express with real bubblewrap."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import anyio.to_thread
import pytest

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.client.providers import local
from agent_sandbox.errors import (
    ArgumentError,
    CommandFailedError,
    CommandTimeoutError,
    FileMissingError,
    InputClosedError,
    ProcessNotFoundError,
)
from agent_sandbox.models import CommandOutput, CommandResult

WAIT_S = 20


class Subject:
    """A sandbox whose commands are awaited on both surfaces."""

    def __init__(self, sandbox: Any, *, blocking: bool) -> None:
        self.sandbox, self.blocking = sandbox, blocking

    async def call(self, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        async with asyncio.timeout(WAIT_S):
            if self.blocking:
                return await anyio.to_thread.run_sync(partial(method, *args, **kwargs))
            return await method(*args, **kwargs)

    async def run(self, command: Any, **kwargs: Any) -> CommandResult:
        result: CommandResult = await self.call(self.sandbox.commands.run, command, **kwargs)
        return result

    async def read(self, stream: Any) -> list[Any]:
        """Return every event of a stream."""
        async with asyncio.timeout(WAIT_S):
            if self.blocking:
                return await anyio.to_thread.run_sync(lambda: list(stream))
            return [event async for event in stream]


@pytest.fixture(params=["async", "blocking"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "async":
        async with await agent_sandbox.Sandbox.create() as sandbox:
            yield Subject(sandbox, blocking=False)
    else:
        twin = await anyio.to_thread.run_sync(agent_sandbox.sync.Sandbox.create)
        yield Subject(twin, blocking=True)
        await anyio.to_thread.run_sync(twin.kill)
        twin.close()
    await anyio.to_thread.run_sync(local.stop)


async def sleepers(subject: Subject) -> int:
    """Return how many `sleep` run, besides pid 1."""
    return int((await subject.run(["pgrep", "-c", "sleep"])).stdout) - 1


async def gone(subject: Subject) -> None:
    """Wait until no `sleep` runs."""
    async with asyncio.timeout(WAIT_S):
        while await sleepers(subject):
            pass


async def test_a_result_has_status_and_output(subject: Subject) -> None:
    done = await subject.run(
        'printf "$A"; printf oh >&2; pwd; exit 3', cwd="/tmp", env={"A": "é\n"}
    )
    assert (done.exit_code, done.stdout, done.stderr) == (3, "é\n/tmp\n", "oh")
    exact = await subject.run(["printf", "%s|", "a b", "$A"])
    assert (exact.exit_code, exact.stdout) == (0, "a b|$A|")
    killed = await subject.run("kill -9 $$")
    assert killed.exit_code == -9
    with pytest.raises(CommandFailedError) as failed:
        await subject.run("echo why >&2; exit 4", check=True)
    assert failed.value.result.exit_code == 4
    assert failed.value.result.stderr == "why\n"


async def test_what_cannot_start_is_named(subject: Subject) -> None:
    assert (await subject.run("no-such-program")).exit_code == 127
    with pytest.raises(FileMissingError):
        await subject.run(["no-such-program"])
    with pytest.raises(FileMissingError):
        await subject.run("true", cwd="/no/such/place")
    for wrong in ("", [], ["a\0b"], [""]):
        with pytest.raises(ArgumentError):
            await subject.run(wrong)


@pytest.mark.parametrize("seconds", [1e10, 1e308, 10**400], ids=["1e10", "1e308", "10^400"])
async def test_a_time_longer_than_any_sandbox_lives_is_no_error(
    subject: Subject, seconds: float
) -> None:
    assert (await subject.run("echo up", timeout_s=seconds)).stdout == "up\n"
    files = subject.sandbox.files
    await subject.call(files.write, "/tmp/f", b"data", deadline_s=seconds)
    assert await subject.call(files.read_bytes, "/tmp/f", 4, deadline_s=seconds) == b"data"


async def test_binary_output_comes_as_it_is(subject: Subject) -> None:
    await subject.call(subject.sandbox.files.write, "/tmp/b", bytes(range(256)) * 100)
    done = await subject.run(["cat", "/tmp/b"])
    assert done.stdout_bytes == bytes(range(256)) * 100
    assert "\ufffd" in done.stdout


async def test_a_result_holds_as_much_output_as_its_caller_wants(subject: Subject) -> None:
    line = "seq 100000; seq 1000 >&2"
    result = await subject.run(line, max_output_bytes=1_001)
    for data, omitted, head, all_bytes in (
        (result.stdout_bytes, result.stdout_omitted_bytes, result.stdout_head_bytes, 588_895),
        (result.stderr_bytes, result.stderr_omitted_bytes, result.stderr_head_bytes, 3_893),
    ):
        assert (len(data), head, len(data) + omitted) == (1_001, 500, all_bytes)
        assert data.startswith(b"1\n2\n3\n")
    assert result.stdout_bytes.endswith(b"100000\n")
    assert (await subject.run(line, max_output_bytes=0)).stdout_omitted_bytes == 588_895
    for wrong in (True, 1.0, "1"):
        with pytest.raises(TypeError):
            await subject.run("true", max_output_bytes=wrong)
    for wrong in (-1, 2_097_153):
        with pytest.raises(ValueError, match="max_output_bytes"):
            await subject.run("true", max_output_bytes=wrong)


async def test_callbacks_get_output_while_the_command_runs(subject: Subject) -> None:
    seen: list[bytes] = []
    done = await live(subject, seen)
    assert b"".join(one for one in seen if not one.startswith(b"err:")) == b"first\nlast\n"
    assert b"err:e\n" in seen
    assert done.stdout == "first\nlast\n"


async def live(subject: Subject, seen: list[bytes]) -> CommandResult:
    """Run a command that goes on only after its first output has arrived here."""
    arrived = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_stdout(data: bytes) -> None:
        seen.append(data)
        loop.call_soon_threadsafe(arrived.set)

    running = asyncio.create_task(
        subject.run(
            "echo first; until [ -e /tmp/go ]; do sleep 0.01; done; echo last; echo e >&2",
            on_stdout=on_stdout,
            on_stderr=lambda data: seen.append(b"err:" + data),
        )
    )
    async with asyncio.timeout(WAIT_S):
        await arrived.wait()
    await subject.call(subject.sandbox.files.write, "/tmp/go", b"")
    return await running


async def test_ten_gibibytes_cost_little_memory(subject: Subject) -> None:
    done = await subject.run("head -c 10G /dev/zero; echo; echo end", timeout_s=300)
    total = 10 * 2**30 + len("\nend\n")
    assert len(done.stdout_bytes) + done.stdout_omitted_bytes == total
    assert len(done.stdout_bytes) <= 2 * 2**20
    assert done.stdout_bytes.endswith(b"\nend\n")
    assert f"[... {done.stdout_omitted_bytes} bytes left out ...]" in done.stdout


async def test_time_that_is_over_kills_the_group_and_keeps_the_output(subject: Subject) -> None:
    with pytest.raises(CommandTimeoutError) as late:
        await subject.run("echo so far; sleep 1000 & sleep 1000", timeout_s=0.4)
    assert late.value.result.stdout == "so far\n"
    assert late.value.result.exit_code is None
    await gone(subject)


async def test_a_command_that_forks_and_leaves_is_not_waited_for(subject: Subject) -> None:
    began = time.monotonic()
    done = await subject.run("setsid sleep 1000 & sleep 1000 & echo started")
    assert done.stdout == "started\n"
    assert time.monotonic() - began < 60
    assert await sleepers(subject) == 2, "what it left runs on"


async def test_a_command_that_closes_its_output_is_waited_for(subject: Subject) -> None:
    done = await subject.run("exec >&- 2>&-; sleep 0.3; exit 5")
    assert (done.exit_code, done.stdout) == (5, "")


async def test_a_command_in_the_background(subject: Subject) -> None:
    commands = subject.sandbox.commands
    command = await subject.call(commands.start, "cat; echo done >&2", stdin=True, tag="t")
    (listed,) = await subject.call(commands.list)
    assert (listed.pid, listed.tag) == (command.pid, "t")
    assert listed.argv == ("/bin/bash", "-l", "-c", "cat; echo done >&2")
    await subject.call(commands.send_stdin, command.pid, "hello ")
    await subject.call(command.send_stdin, b"there" * 300_000)
    await subject.call(command.close_stdin)
    done = await subject.call(command.wait)
    assert (done.exit_code, done.stderr) == (0, "done\n")
    assert len(done.stdout_bytes) + done.stdout_omitted_bytes == 6 + 5 * 300_000
    assert done.stdout_bytes.startswith(b"hello there")
    events = await subject.read(commands.attach(command.pid))
    assert events[-1] == 0, "one that has ended is found for a while"
    assert sum(one.omitted_bytes for one in events[:-1]) > 0
    assert (await subject.call(command.output)).exit_code == 0
    assert not await subject.call(command.kill)
    with pytest.raises(ProcessNotFoundError):
        await subject.call(commands.send_stdin, command.pid, "late")


async def test_output_can_be_looked_at_while_it_runs(subject: Subject) -> None:
    command = await subject.call(subject.sandbox.commands.start, "echo early; sleep 1000")
    async with asyncio.timeout(WAIT_S):
        while (look := await subject.call(command.output)).stdout != "early\n":
            assert look.exit_code is None
    with pytest.raises(InputClosedError):
        await subject.call(command.send_stdin, "x")
    assert await subject.call(command.kill, gently=True)
    assert (await subject.call(command.wait)).exit_code == -15


async def test_a_terminal_in_the_background(subject: Subject) -> None:
    command = await subject.call(subject.sandbox.commands.start, ["bash", "-i"], terminal=(24, 80))
    await subject.call(command.resize, 33, 99)
    await subject.call(command.send_stdin, "stty size; exit 6\n")
    events = await subject.read(command.attach())
    shown = b"".join(one.data for one in events if isinstance(one, CommandOutput))
    assert b"33 99" in shown
    assert {one.stream for one in events[:-1]} == {"pty"}
    assert events[-1] == 6


async def test_commands_that_are_not_there(subject: Subject) -> None:
    commands = subject.sandbox.commands
    for pid in (0, -1, 99_999, True, 2**40):
        for call in (commands.wait, commands.output, commands.close_stdin):
            with pytest.raises(ProcessNotFoundError):
                await subject.call(call, pid)


async def test_many_watchers_see_the_same(subject: Subject) -> None:
    command = await subject.call(
        subject.sandbox.commands.start, "until [ -e /tmp/go ]; do sleep 0.01; done; seq 1000"
    )
    watchers = [asyncio.create_task(subject.read(command.attach())) for _ in range(4)]
    await subject.call(subject.sandbox.files.write, "/tmp/go", b"")
    expected = "".join(f"{n}\n" for n in range(1, 1001)).encode()
    for watcher in watchers:
        events = await watcher
        assert b"".join(one.data for one in events[:-1]) == expected
        assert events[-1] == 0


async def test_cancelling_run_kills_the_group(subject: Subject) -> None:
    if subject.blocking:
        return  # a thread cannot be cancelled; leaving by an exception is tested below
    running = asyncio.create_task(subject.run("sleep 1000 & sleep 1000; echo never"))
    async with asyncio.timeout(WAIT_S):
        while await sleepers(subject) < 2:
            pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await gone(subject)


async def test_a_callback_that_fails_ends_the_command(subject: Subject) -> None:
    def fail(data: bytes) -> None:
        raise LookupError

    with pytest.raises(LookupError):
        await subject.run("echo x; sleep 1000", on_stdout=fail)
    await gone(subject)
