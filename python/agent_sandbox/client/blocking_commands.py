"""`sandbox.commands`, blocking: the twin of `agent_sandbox.client.commands`."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from typing import TypeVar

from agent_sandbox.client._calls import Target
from agent_sandbox.client._drive_blocking import BlockingDriver
from agent_sandbox.client._streams import Stream
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

OnOutput = Callable[[bytes], None]
"""Gets output as it comes, cut anywhere."""


class Commands:
    """The commands of one sandbox; all as in `agent_sandbox.client.commands.Commands`, blocking.

    Safe for any number of threads. Leaving `run` by an exception, as by Ctrl-C, kills the command.
    """

    def __init__(self, driver: BlockingDriver, target: Target) -> None:
        self._driver, self._target = driver, target

    def run(
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
        """Blocking twin of `Commands.run`."""
        live = on_stdout is not None or on_stderr is not None
        call = commands.run(
            command, cwd, env, timeout_s, live=live, max_output_bytes=max_output_bytes
        )
        collector = commands.Collector(check=check, max_output_bytes=max_output_bytes)
        try:
            with Stream(self._driver, call, self._target) as events:
                for event in events:
                    collector.take(event)
                    _tell(event, on_stdout, on_stderr)
        except CommandTimeoutError as error:
            raise collector.late(error) from None
        return collector.ended()

    def start(
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
        """Blocking twin of `Commands.start`."""
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
        with Stream(self._driver, call, self._target) as events:
            decoder = events.decoder
            if not isinstance(decoder, commands.Events) or not decoder.started:
                raise TransferError
            pid = decoder.pid
        if retain_s is not None and not decoder.retained:
            self.kill(pid)
            raise UnsupportedError
        return Command(self, pid, terminal=terminal is not None)

    def list(self, *, ended: bool = False) -> builtins.list[CommandInfo]:
        """Blocking twin of `Commands.list`."""
        return self._driver.run(commands.list_all(ended=ended), self._target)

    def attach(self, pid: Which) -> Stream[Event]:
        """Blocking twin of `Commands.attach`."""
        return Stream(self._driver, commands.attach(pid, live=True), self._target)

    def wait(self, pid: Which, *, check: bool = False) -> CommandResult:
        """Blocking twin of `Commands.wait`."""
        collector = commands.Collector(check=check)
        call = commands.attach(pid, live=False)
        try:
            with Stream(self._driver, call, self._target) as events:
                for event in events:
                    collector.take(event)
        except CommandTimeoutError as error:
            raise collector.late(error) from None
        return collector.ended()

    def output(self, pid: Which) -> CommandResult:
        """Blocking twin of `Commands.output`."""
        collector = commands.Collector()
        with Stream(self._driver, commands.look(pid), self._target) as events:
            for event in events:
                collector.take(event)
        return collector.result()

    def send_stdin(self, pid: int, data: bytes | str, *, terminal: bool = False) -> None:
        """Blocking twin of `Commands.send_stdin`."""
        self._driver.run(commands.send_stdin(pid, data, terminal=terminal), self._target)

    def close_stdin(self, pid: int) -> None:
        """Blocking twin of `Commands.close_stdin`."""
        self._driver.run(commands.close_stdin(pid), self._target)

    def resize(self, pid: int, rows: int, columns: int) -> None:
        """Blocking twin of `Commands.resize`."""
        self._driver.run(commands.resize(pid, rows, columns), self._target)

    def kill(self, pid: Which, *, gently: bool = False) -> bool:
        """Blocking twin of `Commands.kill`."""
        return self._driver.run(commands.kill(pid, gently=gently), self._target)


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

    def attach(self) -> Stream[Event]:
        """See `Commands.attach`."""
        return self._commands.attach(self.pid)

    def wait(self, *, check: bool = False) -> CommandResult:
        """See `Commands.wait`."""
        return self._commands.wait(self.pid, check=check)

    def output(self) -> CommandResult:
        """See `Commands.output`."""
        return self._commands.output(self.pid)

    def send_stdin(self, data: bytes | str) -> None:
        """See `Commands.send_stdin`."""
        self._commands.send_stdin(self.pid, data, terminal=self._terminal)

    def close_stdin(self) -> None:
        """See `Commands.close_stdin`."""
        self._commands.close_stdin(self.pid)

    def resize(self, rows: int, columns: int) -> None:
        """See `Commands.resize`."""
        self._commands.resize(self.pid, rows, columns)

    def kill(self, *, gently: bool = False) -> bool:
        """See `Commands.kill`."""
        return self._commands.kill(self.pid, gently=gently)


def _tell(event: Event, on_stdout: OnOutput | None, on_stderr: OnOutput | None) -> None:
    if not isinstance(event, CommandOutput):
        return
    callback = on_stderr if event.stream == "stderr" else on_stdout
    if callback is not None:
        callback(event.data)
