"""One command in a sandbox, as Express holds it: its handle, its streams, its end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
from collections.abc import Callable
from typing import Any, Literal

from agent_sandbox.errors import (
    ArgumentError,
    FileMissingError,
    FilePermissionError,
    SandboxUnavailableError,
)
from agent_sandbox.express.isolation import command, messages

Scope = Literal["process", "group", "tree"]
Send = Callable[[messages.Message], None]


class Pipes:
    """The descriptors of one start; whatever is not taken is closed."""

    def __init__(self, *, terminal: bool, stdin: bool) -> None:
        self.stdin = self.stdout = self.stderr = self._status = -1
        self.theirs: list[int] = []
        try:
            self._status, write = os.pipe2(os.O_CLOEXEC)
            self.theirs.append(write)
            if terminal:
                return
            if stdin:
                read, self.stdin = os.pipe2(os.O_CLOEXEC)
            else:
                read = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
            self.theirs.append(read)
            self.stdout, write = os.pipe2(os.O_CLOEXEC)
            self.theirs.append(write)
            self.stderr, write = os.pipe2(os.O_CLOEXEC)
            self.theirs.append(write)
        except OSError:
            self.close()
            raise SandboxUnavailableError(errno=None) from None

    def take_status(self) -> int:
        """Hand over the reading end of the status pipe."""
        fd, self._status = self._status, -1
        return fd

    def take_streams(self) -> tuple[int, int, int]:
        """Hand over our ends of input, output and error."""
        fds = (self.stdin, self.stdout, self.stderr)
        self.stdin = self.stdout = self.stderr = -1
        return fds

    def close_theirs(self) -> None:
        """Close what the command has its own copies of."""
        messages.close_all(self.theirs)
        self.theirs = []

    def close(self) -> None:
        """Close everything that nobody took."""
        self.close_theirs()
        for fd in (*self.take_streams(), self.take_status()):
            if fd >= 0:
                os.close(fd)


def signal_message(number: int, wanted: int, scope: Scope, pid: int = 0) -> messages.Message:
    """Return the order to signal the command of a number, with its group or its tree."""
    return {"op": "signal", "id": number, "signal": int(wanted), "scope": scope, "pid": pid}


class Process:
    """A command in a sandbox.

    Attributes:
        pid: Its number as the sandbox's other processes see it; for showing, never for killing.
        pidfd: Handle on the very process.
        stdin: Pipe to write to, or -1. Descriptors belong to this object until `detach` is said.
        stdout: Pipe to read from, or -1 with a terminal.
        stderr: Pipe to read from, or -1 with a terminal.
        terminal: Master side of the terminal (non-blocking), or -1.
    """

    def __init__(self, send: Send, number: int, fds: list[int], pipes: Pipes) -> None:
        self.pid = 0
        self.pidfd = fds[0]
        self.terminal = fds[1] if len(fds) > 1 else -1
        self.stdin, self.stdout, self.stderr = pipes.take_streams()
        self._send = send
        self._number = number
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        """Return the exit status, or the negative number of the signal that ended it.

        The streams may still be open then, in the hands of processes that it left behind.
        """
        return await asyncio.shield(self._exit)

    def send_signal(self, number: int, scope: Scope = "process") -> None:
        """Send a signal to the process or to its whole group; nothing happens after its end."""
        if scope == "process":
            if self.pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self.pidfd, number)
            return
        with contextlib.suppress(SandboxUnavailableError):
            self._send(signal_message(self._number, number, scope, self.pid))

    def kill_tree(self) -> None:
        """Kill it with its session, its group and all descendants of theirs.

        Out of reach is only what both began a session of its own and lost its parent: a daemon,
        which lives until the sandbox ends.
        """
        self.send_signal(signal.SIGKILL, "tree" if self.pid else "group")

    def close(self) -> None:
        """Close every descriptor that is still ours. The command does not end by it."""
        for attribute in ("pidfd", "stdin", "stdout", "stderr", "terminal"):
            fd = getattr(self, attribute)
            if fd >= 0:
                setattr(self, attribute, -1)
                os.close(fd)

    def detach(self, attribute: Literal["stdin", "stdout", "stderr", "terminal"]) -> int:
        """Hand one descriptor over to the caller, who closes it."""
        fd: int = getattr(self, attribute)
        setattr(self, attribute, -1)
        return fd

    def finish(self, code: int) -> None:
        """Record the exit status (said by the sandbox)."""
        if not self._exit.done():
            self._exit.set_result(code)

    async def wait_started(self, status_fd: int) -> None:
        """Wait until the program runs, or raise what stopped it; closes `status_fd`.

        Also when it is cancelled, `pid` is known if the program may run: `kill_tree` then reaches
        what it has started.
        """
        said = bytearray()
        try:
            await _read_to_end(status_fd, said)
        finally:
            if len(said) >= 4:
                self.pid = struct.unpack_from("=i", said)[0]
        if len(said) < 4:
            raise SandboxUnavailableError(errno=None)
        if len(said) >= 12:
            raise _start_error(*struct.unpack_from("=ii", said, 4))


def _start_error(step: int, code: int) -> Exception:
    name = {command.STEP_CWD: "cwd", command.STEP_EXEC: "exec"}.get(step, "setup")
    error: dict[str, Any] = {"step": name, "errno": code}
    if step == command.STEP_SETUP:
        return SandboxUnavailableError(**error)
    try:
        raise OSError(code, "")
    except (FileNotFoundError, NotADirectoryError):
        return FileMissingError(**error)
    except PermissionError:
        return FilePermissionError(**error)
    except OSError:
        return ArgumentError(**error)


async def _read_to_end(fd: int, said: bytearray) -> None:
    """Add what comes from `fd` to `said`, when cancelled also what has come by then; close it."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    done = asyncio.Event()

    def on_readable() -> None:
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(fd, 64):
                said.extend(chunk)
            loop.remove_reader(fd)
            done.set()

    loop.add_reader(fd, on_readable)
    try:
        await done.wait()
    except asyncio.CancelledError:
        on_readable()
        raise
    finally:
        loop.remove_reader(fd)
        os.close(fd)


async def wait_writable(fd: int) -> None:
    """Wait until a socket takes more; only one may wait for the same one."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(fd, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(fd)


async def wait_readable(fd: int, seconds: float) -> bool:
    """Wait until `fd` is readable (a pidfd: its process has ended); False when it was not."""
    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    loop.add_reader(fd, done.set)
    try:
        async with asyncio.timeout(seconds):
            await done.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(fd)
    return True
