"""`sandbox.commands`, async: running, starting, watching and ending commands."""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from agent_sandbox.client._calls import Target
from agent_sandbox.client._drive_async import AsyncDriver
from agent_sandbox.client._streams import AsyncStream
from agent_sandbox.client.operations import commands
from agent_sandbox.client.operations.commands import (
    COMMAND_TIMEOUT_S,
    OUTPUT_BYTES,
    Argv,
    Event,
    Which,
)
from agent_sandbox.errors import CommandTimeoutError, TransferError, UnsupportedError
from agent_sandbox.models import CommandInfo, CommandOutput, CommandResult

T = TypeVar("T")

OnOutput = Callable[[bytes], Awaitable[None] | None]
"""Gets output as it comes, cut anywhere; may be a coroutine function."""


class Commands:
    """The commands of one sandbox.

    All of them share its processes, network and files. Every method may raise the errors that
    `Files` names, and `UnsupportedError` (E5006) where the service runs no commands.
    """

    def __init__(self, driver: AsyncDriver, target: Target) -> None:
        self._driver, self._target = driver, target

    async def run(
        self,
        command: Argv,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = COMMAND_TIMEOUT_S,
        on_stdout: OnOutput | None = None,
        on_stderr: OnOutput | None = None,
        check: bool = False,
        max_output_bytes: int = OUTPUT_BYTES,
    ) -> CommandResult:
        """Run a command to its end and return its status and output.

        A status other than 0 is a result, and so is a missing program in a line of bash (127). The
        result holds the first and the last part of each stream and says what is left out between.
        When this call is cancelled, or its connection breaks, the command is killed with
        everything in its process group; what it started in sessions of their own lives on. The
        sandbox does not reach the end of its life while it runs.

        Args:
            command: A line for `bash -l -c`, or a program with its arguments.
            cwd: Absolute path; None is `/home/user`.
            env: Added to the sandbox's environment.
            timeout_s: Seconds after which it is killed; None is no bound.
            on_stdout: Gets standard output as it comes, all of it. The command waits for a slow
                one; one that takes nothing for 30 s ends this call (E5010) and the command.
            on_stderr: The same for standard error.
            check: Whether a status other than 0 is an error.
            max_output_bytes: How much of each stream the result holds, at most and by default
                2 MiB: half of it the first part, half the last.

        Raises:
            FileMissingError: E4001: there is no such program, or no such directory `cwd`.
            CommandTimeoutError: E5008: time was over; `.result` is what it wrote until then.
            CommandFailedError: E5009: `check`, and the status is not 0; `.result` has it.
        """
        live = on_stdout is not None or on_stderr is not None
        call = commands.run(
            command, cwd, env, timeout_s, live=live, max_output_bytes=max_output_bytes
        )
        collector = commands.Collector(check=check, max_output_bytes=max_output_bytes)
        try:
            async with AsyncStream(self._driver, call, self._target) as events:
                async for event in events:
                    collector.take(event)
                    await _tell(event, on_stdout, on_stderr)
        except CommandTimeoutError as error:
            raise collector.late(error) from None
        return collector.ended()

    async def start(
        self,
        command: Argv,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        timeout_s: float | None = None,
        tag: str | None = None,
        retain_s: int | None = None,
    ) -> Command:
        """Start a command in the background and return a handle on it.

        It lives until it ends, is killed, its time is over, or the sandbox ends.

        Args:
            command: As for `run`.
            cwd: As for `run`.
            env: As for `run`.
            stdin: Whether it gets an input to write to; else that is empty.
            terminal: Rows and columns of a terminal in place of its three streams.
            timeout_s: Seconds after which it is killed; None is no bound.
            tag: A name that `list` shows, and that finds it in place of its number.
            retain_s: Keep the sandbox for it: that lives at least so many seconds more (1 to
                86,400), and until the command ends its release does not end it, nor does the end
                of the program whose embedded service it is in. None keeps nothing.

        Raises:
            FileMissingError: E4001: there is no such program, or no such directory `cwd`.
            UnsupportedError: E5006: also where `retain_s` is nothing that the service knows; then
                the command was killed.
        """
        call = commands.start(
            command,
            cwd,
            env,
            timeout_s,
            stdin=stdin,
            terminal=terminal,
            tag=tag,
            retain_s=retain_s,
        )
        async with AsyncStream(self._driver, call, self._target) as events:
            decoder = events.decoder
            if not isinstance(decoder, commands.Events) or not decoder.started:
                raise TransferError
            pid = decoder.pid
        if retain_s is not None and not decoder.retained:
            await self.kill(pid)
            raise UnsupportedError
        return Command(self, pid, terminal=terminal is not None)

    async def list(self, *, ended: bool = False) -> builtins.list[CommandInfo]:
        """Return the commands that run.

        Args:
            ended: Also those that have ended not long ago: the last 16, and the last 16 that have
                a tag. Services other than Express list none of these.
        """
        return await self._driver.run(commands.list_all(ended=ended), self._target)

    def attach(self, pid: Which) -> AsyncStream[Event]:
        """Return an iterator over a command's output, and at its end over its status.

        It begins with what the service still holds: the first and the last 128 KiB of each stream.
        A command that has ended not long ago is found, too. A reader that takes nothing for 30 s
        is let go (E5010); the command goes on.

        Raises:
            ProcessNotFoundError: E5007, when it is entered or read.
        """
        return AsyncStream(self._driver, commands.attach(pid, live=True), self._target)

    async def wait(self, pid: Which, *, check: bool = False) -> CommandResult:
        """Wait for the end of a command and return its result, as `run` does.

        Raises:
            ProcessNotFoundError: E5007.
            CommandTimeoutError: E5008: its time was over.
            CommandFailedError: E5009: `check`, and the status is not 0.
        """
        collector = commands.Collector(check=check)
        call = commands.attach(pid, live=False)
        try:
            async with AsyncStream(self._driver, call, self._target) as events:
                async for event in events:
                    collector.take(event)
        except CommandTimeoutError as error:
            raise collector.late(error) from None
        return collector.ended()

    async def output(self, pid: Which) -> CommandResult:
        """Return what the service holds of a command's output now; the status is None if it runs.

        Raises:
            ProcessNotFoundError: E5007.
        """
        collector = commands.Collector()
        async with AsyncStream(self._driver, commands.look(pid), self._target) as events:
            async for event in events:
                collector.take(event)
        return collector.result()

    async def send_stdin(self, pid: int, data: bytes | str, *, terminal: bool = False) -> None:
        """Write to a command's input; returns when the command's side has taken it.

        Raises:
            ProcessNotFoundError: E5007.
            InputClosedError: E5011: it takes no input.
            UploadTimeoutError: E4009: it did not read in time; a part may have been written.
        """
        await self._driver.run(commands.send_stdin(pid, data, terminal=terminal), self._target)

    async def close_stdin(self, pid: int) -> None:
        """End a command's input.

        Raises:
            ProcessNotFoundError: E5007.
            InputClosedError: E5011.
        """
        await self._driver.run(commands.close_stdin(pid), self._target)

    async def resize(self, pid: int, rows: int, columns: int) -> None:
        """Give a command's terminal another size.

        Raises:
            ProcessNotFoundError: E5007.
            ArgumentError: E2001: it has no terminal.
        """
        await self._driver.run(commands.resize(pid, rows, columns), self._target)

    async def kill(self, pid: Which, *, gently: bool = False) -> bool:
        """Kill a command with its process group and descendants; False where it was gone.

        Args:
            pid: Its number, or its tag.
            gently: Send SIGTERM to its process group instead.
        """
        return await self._driver.run(commands.kill(pid, gently=gently), self._target)


class Command:
    """A command in the background; get it from `Commands.start`.

    Attributes:
        pid: Its number in the sandbox.
    """

    def __init__(self, commands: Commands, pid: int, *, terminal: bool) -> None:
        self.pid = pid
        self._commands = commands
        self._terminal = terminal

    def __repr__(self) -> str:
        return f"<Command {self.pid}>"

    def attach(self) -> AsyncStream[Event]:
        """See `Commands.attach`."""
        return self._commands.attach(self.pid)

    async def wait(self, *, check: bool = False) -> CommandResult:
        """See `Commands.wait`."""
        return await self._commands.wait(self.pid, check=check)

    async def output(self) -> CommandResult:
        """See `Commands.output`."""
        return await self._commands.output(self.pid)

    async def send_stdin(self, data: bytes | str) -> None:
        """See `Commands.send_stdin`."""
        await self._commands.send_stdin(self.pid, data, terminal=self._terminal)

    async def close_stdin(self) -> None:
        """See `Commands.close_stdin`."""
        await self._commands.close_stdin(self.pid)

    async def resize(self, rows: int, columns: int) -> None:
        """See `Commands.resize`."""
        await self._commands.resize(self.pid, rows, columns)

    async def kill(self, *, gently: bool = False) -> bool:
        """See `Commands.kill`."""
        return await self._commands.kill(self.pid, gently=gently)


async def _tell(event: Event, on_stdout: OnOutput | None, on_stderr: OnOutput | None) -> None:
    if not isinstance(event, CommandOutput):
        return
    callback = on_stderr if event.stream == "stderr" else on_stdout
    if callback is not None:
        answer = callback(event.data)
        if inspect.isawaitable(answer):
            await answer
