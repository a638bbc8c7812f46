"""The commands of one sandbox."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agent_sandbox.errors import (
    ArgumentError,
    ProcessNotFoundError,
    SandboxUnavailableError,
    ServiceBusyError,
)
from agent_sandbox.express.isolation import RunningSandbox
from agent_sandbox.express.names import HOME, absolute_path
from agent_sandbox.express.processes.command import Command
from agent_sandbox.wire.process import ProcessSelector, StartRequest

MAX_RUNNING = 256
"""Most commands of one sandbox at a time; each holds up to 512 KiB of output."""

MAX_ENDED = 16
"""Commands that are remembered after their end, for callers who come late; and as many again that
have a tag, so that those who come and go do not push them out."""


class Commands:
    """Starts commands in a sandbox and finds them again.

    Args:
        running: The sandbox.
        variables: Environment of all its commands.
        on_end: Called after the end of each.
    """

    def __init__(
        self, running: RunningSandbox, variables: dict[str, str], on_end: Callable[[], None]
    ) -> None:
        self._running = running
        self._variables = variables
        self._live: dict[int, Command] = {}
        self._ended: dict[int, Command] = {}
        self._after_end = on_end
        self._closed = False

    def __iter__(self) -> Iterator[Command]:
        return iter(tuple(self._live.values()))

    @property
    def ended(self) -> tuple[Command, ...]:
        """What is remembered of those that have ended."""
        return tuple(self._ended.values())

    @property
    def retained(self) -> bool:
        """Whether one that is retained runs."""
        return any(command.retained for command in self._live.values())

    async def start(self, wanted: StartRequest) -> Command:
        """Start a command.

        Raises:
            ArgumentError: E2001: no program, or arguments that cannot be passed.
            PathError: E2002: the directory's path.
            FileMissingError: E4001: the program or the directory does not exist.
            FilePermissionError: E4002: it may not be run or entered.
            ServiceBusyError: E5015: there are too many already.
            SandboxUnavailableError: E5003: the sandbox has ended.
        """
        config = wanted.process
        if config is None or not config.cmd:
            raise ArgumentError
        if len(self._live) >= MAX_RUNNING:
            raise ServiceBusyError
        size = None
        if wanted.pty is not None:
            given = wanted.pty.size
            size = (min(given.rows, 0xFFFF), min(given.cols, 0xFFFF)) if given else (24, 80)
        process = await self._running.spawn(
            [config.cmd, *config.args],
            env={**self._variables, **config.envs},
            cwd=absolute_path(config.cwd, directory=True) if config.cwd else HOME,
            stdin=size is None and wanted.stdin is not False,
            pty=size,
        )
        if self._closed:
            process.kill_tree()
            process.close()
            raise SandboxUnavailableError
        command = Command(process, config, wanted.tag, self._on_end)
        self._forget(self._ended.pop(command.pid, None))  # the kernel gave the number away again
        self._live[command.pid] = command
        return command

    def find(self, selector: ProcessSelector | None, *, ended: bool = False) -> Command:
        """Return a running command, with `ended` also one that has ended not long ago.

        Raises:
            ArgumentError: E2001: nothing is named.
            ProcessNotFoundError: E5007.
        """
        if selector is None or (selector.pid is None and selector.tag is None):
            raise ArgumentError
        places = [self._live, self._ended] if ended else [self._live]
        for place in places:
            for command in reversed(place.values()):
                if selector.pid == command.pid or (
                    selector.pid is None and selector.tag == command.tag
                ):
                    return command
        raise ProcessNotFoundError

    def close(self) -> None:
        """Let go of every command: the sandbox ends."""
        self._closed = True
        for command in (*self._live.values(), *self._ended.values()):
            command.close()
        self._live.clear()
        self._ended.clear()

    def _on_end(self, command: Command) -> None:
        self._live.pop(command.pid, None)
        if self._closed:
            return
        self._ended[command.pid] = command
        tagged = command.tag is not None
        alike = [one.pid for one in self._ended.values() if (one.tag is not None) is tagged]
        for pid in alike[:-MAX_ENDED]:
            self._forget(self._ended.pop(pid))
        self._after_end()

    @staticmethod
    def _forget(command: Command | None) -> None:
        if command is not None:
            command.forget()
