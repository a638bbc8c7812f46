"""A sandbox that is up, as Express holds it: commands in, exits out, its end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket

from agent_sandbox.errors import ArgumentError, SandboxUnavailableError
from agent_sandbox.express.isolation import messages, rootfs
from agent_sandbox.express.isolation.config import SandboxConfig
from agent_sandbox.express.isolation.process import (
    Pipes,
    Process,
    signal_message,
    wait_readable,
)

MAX_ARGUMENT_BYTES = 2_097_152
"""Most bytes that arguments and environment of a command may have together (2 MiB)."""

_STOP_TIMEOUT_S = 5.0


class RunningSandbox:
    """A sandbox that is up: start commands in it, look at its files, end it.

    Attributes:
        root_fd: O_PATH descriptor of its `/` as commands see it, mounts included; the start of
            every file operation (openat2 with RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS).
        ready: Done once commands may come.
        ended: Set once the sandbox is gone, for whatever reason.
    """

    def __init__(self, sock: socket.socket, config: SandboxConfig) -> None:
        self.config = config
        self.ended = asyncio.Event()
        self.root_fd = -1
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._porter_fd = -1
        self._first_fd = -1
        self._next = 0
        self._waiting: dict[int, asyncio.Future[list[int]]] = {}
        self._running: dict[int, Process] = {}
        self._early: dict[int, int] = {}
        self._disowned: set[int] = set()
        # Waiting for room in the socket; the descriptors stay open until the answer has come.
        self._outbox: list[tuple[messages.Message, list[int]]] = []
        self._loop.add_reader(sock, self._on_readable)

    async def spawn(
        self,
        argv: list[str],
        *,
        env: dict[str, str] | None = None,
        cwd: str = rootfs.HOME,
        stdin: bool = False,
        pty: tuple[int, int] | None = None,
    ) -> Process:
        """Start a command in a session and process group of its own.

        Cancelling this call kills the command if it has started.

        Args:
            argv: Program (looked up in the command's PATH) and arguments.
            env: Added to, or put in place of, `rootfs.ENVIRONMENT`.
            cwd: Absolute path inside the sandbox.
            stdin: Whether standard input is a pipe; else it is empty.
            pty: Rows and columns of a terminal that becomes all three streams.

        Raises:
            ArgumentError: E2001, an argument with NUL, an empty argv, or too many bytes of them.
            FileMissingError: E4001, the program or `cwd` does not exist; `.step` is which.
            FilePermissionError: E4002, it may not be run or entered.
            SandboxUnavailableError: E5003, the sandbox has ended, or its limit of processes is
                reached (`.errno` EAGAIN).
        """
        variables = {**self._environment(), **(env or {})}
        _check_arguments(argv, variables, cwd)
        number = self._next
        self._next += 1
        pipes = Pipes(terminal=pty is not None, stdin=stdin)
        answer: asyncio.Future[list[int]] = self._loop.create_future()
        process: Process | None = None
        try:
            self._waiting[number] = answer
            request = {
                "op": "spawn",
                "id": number,
                "argv": argv,
                "env": variables,
                "cwd": cwd,
                "pty": list(pty) if pty else None,
            }
            self._send(request, pipes.theirs)
            fds = await answer
            pipes.close_theirs()
            process = Process(self._send, number, fds, pipes)
            self._running[number] = process
            if number in self._early:
                process.finish(self._early.pop(number))
            await process.wait_started(pipes.take_status())
        except BaseException:
            self._waiting.pop(number, None)
            self._outbox = [entry for entry in self._outbox if entry[0].get("id") != number]
            if process is not None:
                process.kill_tree()
                process.close()
            elif answer.done() and not answer.cancelled() and answer.exception() is None:
                self._disown(number, answer.result())
            raise
        finally:
            pipes.close()
        return process

    def kill_all(self) -> None:
        """Kill every process in the sandbox; the sandbox itself stays."""
        with contextlib.suppress(SandboxUnavailableError):
            self._send({"op": "kill_all"})

    async def stop(self) -> None:
        """End the sandbox; when this returns none of its processes is left. Idempotent.

        The directory stays.
        """
        self._kill(self._first_fd)
        self.disconnect()
        for fd in (self._first_fd, self._porter_fd):
            if fd >= 0 and not await wait_readable(fd, _STOP_TIMEOUT_S):
                self._kill(self._porter_fd)
        self.release()

    def release(self) -> None:
        """Close every descriptor of a sandbox that was let go."""
        for attribute in ("_first_fd", "_porter_fd", "root_fd"):
            fd = getattr(self, attribute)
            setattr(self, attribute, -1)
            if fd >= 0:
                os.close(fd)

    @staticmethod
    def _kill(pidfd: int) -> None:
        if pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _environment(self) -> dict[str, str]:
        if self.config.kind == "bubblewrap":
            return dict(rootfs.ENVIRONMENT)
        home = os.readlink(f"/proc/self/fd/{self.root_fd}") + rootfs.HOME
        return {**rootfs.ENVIRONMENT, "HOME": home, "PWD": home}

    def _send(self, message: messages.Message, fds: list[int] | None = None) -> None:
        if self.ended.is_set():
            raise SandboxUnavailableError(errno=None)
        self._outbox.append((message, fds or []))
        self._flush()

    def _flush(self) -> None:
        while self._outbox:
            try:
                messages.send(self._sock, *self._outbox[0])
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._flush)
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    self.disconnect()
                    return
                # Too many descriptors are under way between all who run as this user: this
                # command does not start, and the sandbox lives on.
                self._refuse(int(self._outbox[0][0]["id"]), error.errno)
            del self._outbox[0]
        self._loop.remove_writer(self._sock)

    def _refuse(self, number: int, code: int | None) -> None:
        waiting = self._waiting.pop(number, None)
        if waiting is not None and not waiting.done():
            waiting.set_exception(SandboxUnavailableError(errno=code))

    def _on_readable(self) -> None:
        while not self.ended.is_set():
            try:
                received = messages.receive(self._sock)
            except BlockingIOError:
                return
            except (OSError, ValueError):
                received = None
            if received is None:
                self.disconnect()
                return
            self._on_event(*received)

    def _on_event(self, event: messages.Message, fds: list[int]) -> None:
        kind = event.get("event")
        if kind == "ready" and len(fds) >= 2 and not self.ready.done():
            self._porter_fd, self.root_fd = fds[:2]
            self._first_fd = fds[2] if len(fds) > 2 else -1
            self.ready.set_result(None)
            return
        if kind == "spawned":
            waiting = self._waiting.pop(int(event["id"]), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(fds)
                return
            self._disown(int(event["id"]), fds)
            return
        elif kind == "refused":
            self._refuse(int(event["id"]), event.get("errno"))
        elif kind == "exited":
            self._on_exit(int(event["id"]), int(event["code"]))
        elif kind == "failed" and not self.ready.done():
            self.ready.set_exception(
                SandboxUnavailableError(step=event.get("step"), errno=event.get("errno"))
            )
        messages.close_all(fds)

    def _on_exit(self, number: int, code: int) -> None:
        process = self._running.pop(number, None)
        if process is not None:
            process.finish(code)
        elif number in self._disowned:
            self._disowned.discard(number)
        else:  # said in the same breath as its start, of which the caller has not woken up yet
            self._early[number] = code

    def _disown(self, number: int, fds: list[int]) -> None:
        """End a command whose caller was cancelled before it could own it."""
        if self._early.pop(number, None) is None:
            self._disowned.add(number)
            # By the porter, with its group: it may have run for a while and started others.
            with contextlib.suppress(SandboxUnavailableError):
                self._send(signal_message(number, signal.SIGKILL, "group"))
        messages.close_all(fds)

    def disconnect(self) -> None:
        """Let go of the porter, which then ends the sandbox by itself. Idempotent."""
        if self.ended.is_set():
            return
        self.ended.set()
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._outbox.clear()
        self._sock.close()
        if not self.ready.done():
            self.ready.set_exception(SandboxUnavailableError(step="porter"))
            self.ready.exception()  # seen: a start that was given up asks no more
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(SandboxUnavailableError(errno=None))
        self._waiting.clear()
        for process in list(self._running.values()):
            process.finish(-int(signal.SIGKILL))
        self._running.clear()


def _check_arguments(argv: list[str], variables: dict[str, str], cwd: str) -> None:
    texts = [*argv, cwd, *variables.keys(), *variables.values()]
    try:
        size = sum(len(text.encode()) + 1 for text in texts)
    except UnicodeEncodeError:
        raise ArgumentError from None
    if not argv or size > MAX_ARGUMENT_BYTES or any("\0" in text for text in texts):
        raise ArgumentError
    if any("=" in name or not name for name in variables):
        raise ArgumentError
