"""One command: its output goes to a bounded buffer and to every watcher, its end to all of them.

A watcher that is full makes the command wait: its pipes are not read until there is room. One that
takes nothing for `STALL_S` is let go with an error, so that a caller who hangs neither holds memory
nor stops the command for good. Without watchers a command runs at full speed; the buffer forgets
the middle.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable, Iterable

from agent_sandbox.express.isolation import Process
from agent_sandbox.express.processes.input import Input
from agent_sandbox.express.processes.watcher import Chunk, Watcher, chunks_of
from agent_sandbox.output import OutputBuffer
from agent_sandbox.wire.process import ProcessConfig, Stream

HELD_BYTES = 262_144
"""Output of each stream that is held for later callers: the first and the last 128 KiB."""

STALL_S = 30.0
"""How long a reader that is full may take nothing."""

_READ_BYTES = 65_536
_DRAIN_S = 0.1
"""After its end, how long output of what a command left behind still counts as its own."""

_LEFT_BYTES = 1_048_576
"""Most that is taken of each stream after that: more than a pipe or a terminal holds."""


class Command:
    """A command of a sandbox.

    Attributes:
        config: What was asked for.
        tag: Its name, or None.
        code: Its status once it has ended, a signal as a negative number; None before.
        timed_out: Whether it was killed for want of time.
        retained: Whether its sandbox outlives its maker for it.
        input: Its standard input or its terminal.
    """

    def __init__(
        self,
        process: Process,
        config: ProcessConfig,
        tag: str | None,
        on_end: Callable[[Command], None],
    ) -> None:
        self.config = config
        self.tag = tag
        self.pid = process.pid
        self.code: int | None = None
        self.timed_out = False
        self.retained = False
        self._process = process
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._watchers: set[Watcher] = set()
        self._paused = False
        self._stall: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._silent = asyncio.Event()  # every stream has come to its end
        self._terminal = process.detach("terminal")
        self._reading: dict[int, Stream] = {}
        if self._terminal >= 0:
            self.input = Input(self._terminal, owned=False)
            self._reading[self._terminal] = "pty"
        else:
            self.input = Input(process.detach("stdin"), owned=True)
            self._reading[process.detach("stdout")] = "stdout"
            self._reading[process.detach("stderr")] = "stderr"
        self._held = {stream: OutputBuffer(HELD_BYTES) for stream in self._reading.values()}
        for fd in self._reading:
            os.set_blocking(fd, False)
        self._read_all()
        self._waiting = self._loop.create_task(self._wait())

    def watch(self, *, replay: bool, limit_bytes: int | None) -> Watcher:
        """Return a new watcher; the caller says `unwatch` in the end.

        Args:
            replay: Whether it begins with what is held of the output so far.
            limit_bytes: See `Watcher`.
        """
        watcher = Watcher(self._resume, limit_bytes=limit_bytes)
        if replay:
            for chunk in self.held():
                watcher.push(chunk)
        if self.code is None:
            self._watchers.add(watcher)
        else:
            watcher.end()
        return watcher

    def unwatch(self, watcher: Watcher) -> None:
        """Forget a watcher; the command goes on."""
        self._watchers.discard(watcher)
        self._resume()

    def held(self) -> list[Chunk]:
        """Return what is held of the output so far."""
        return [
            chunk
            for stream, buffer in self._held.items()
            for chunk in chunks_of(stream, buffer.output())
        ]

    def end_after(self, seconds: float | None) -> None:
        """Kill it when so much time has passed; None takes a bound back."""
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if seconds is not None and self.code is None:
            self._deadline = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        self.timed_out = True
        self._process.kill_tree()

    def kill(self) -> None:
        """Kill it with everything in its session and group; nothing happens after its end."""
        if self.code is None:
            self._process.kill_tree()

    def terminate(self) -> None:
        """Ask its group to end."""
        self._process.send_signal(signal.SIGTERM, "group")

    def resize(self, rows: int, columns: int) -> bool:
        """Give its terminal another size; False where it has none."""
        if self._terminal < 0:
            return False
        size = struct.pack("HHHH", min(rows, 0xFFFF), min(columns, 0xFFFF), 0, 0)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, size)
        return True

    def close(self) -> None:
        """Let go of it: the sandbox ends."""
        self._waiting.cancel()
        self._finish(-int(signal.SIGKILL))
        for fd in tuple(self._reading):
            self._end_stream(fd)

    def forget(self) -> None:
        """Give up what is held of its output; what it left behind may write on, to nobody."""
        self._held = {stream: OutputBuffer(0) for stream in self._held}

    async def _wait(self) -> None:
        code = await self._process.wait()
        self.input.close()
        # What it wrote itself is in the pipes by now. They end with it, unless it left somebody
        # behind who holds them: such a one is not waited for.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await self._silent.wait()
        for fd in tuple(self._reading):
            left = _LEFT_BYTES
            while left > 0 and (taken := self._read(fd)):  # a terminal gives 4 KiB at a time
                left -= taken
        self._finish(code)

    def _finish(self, code: int) -> None:
        if self.code is not None:
            return
        self.code = code
        self.end_after(None)
        self.input.close()
        for watcher in self._watchers:
            watcher.end()
        self._watchers.clear()
        self._resume()  # from here on what is left behind writes into the buffer alone
        self._process.close()
        self._on_end(self)

    def _read(self, fd: int) -> int:
        """Take some output; return how many bytes, 0 where there is nothing now or no more."""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno != errno.EIO:  # a terminal that nobody holds any more
                raise
            data = b""
        if not data:
            self._end_stream(fd)
            return 0
        chunk = Chunk(self._reading[fd], data)
        self._held[chunk.stream].append(data)
        for watcher in self._watchers:
            watcher.push(chunk)
        if any(watcher.full for watcher in self._watchers):
            self._pause()
        return len(data)

    def _end_stream(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        self._reading.pop(fd, None)
        if fd == self._terminal:
            self._terminal = -1
            self.input.close()
        os.close(fd)
        if not self._reading:
            self._silent.set()

    def _read_all(self) -> None:
        for fd in self._reading:
            self._loop.add_reader(fd, self._read, fd)

    def _pause(self) -> None:
        if self._paused:
            return
        self._paused = True
        for fd in self._reading:
            self._loop.remove_reader(fd)
        self._stall = self._loop.call_later(STALL_S, self._drop, self._full())

    def _resume(self) -> None:
        if not self._paused or self._full():
            return
        self._paused = False
        if self._stall is not None:
            self._stall.cancel()
        self._read_all()

    def _full(self) -> Iterable[Watcher]:
        return [watcher for watcher in self._watchers if watcher.full]

    def _drop(self, stalled: Iterable[Watcher]) -> None:
        for watcher in stalled:
            if watcher.full:
                watcher.drop()
                self._watchers.discard(watcher)
        self._resume()
        if self._paused:
            self._stall = self._loop.call_later(STALL_S, self._drop, self._full())
