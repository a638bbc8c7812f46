"""Writing to a command that may read slowly, or not at all."""

from __future__ import annotations

import asyncio
import os

from agent_sandbox.errors import InputClosedError


class Input:
    """A command's standard input or terminal.

    Args:
        fd: Where to write; -1 where there is nothing.
        owned: Whether closing the input closes the descriptor: a terminal's is its output, too.
    """

    def __init__(self, fd: int, *, owned: bool) -> None:
        self._fd = fd
        self._owned = owned
        self._closing = False
        self._writing = asyncio.Lock()
        self._ready = asyncio.Event()
        if fd >= 0:
            os.set_blocking(fd, False)

    @property
    def is_terminal(self) -> bool:
        """Whether it is a terminal."""
        return not self._owned

    async def write(self, data: bytes) -> None:
        """Write all of `data`, waiting for the command to read; calls keep their order.

        When this is cancelled, a part may have been written.

        Raises:
            InputClosedError: E5011: nobody reads.
        """
        async with self._writing:
            view = memoryview(data)
            while True:
                if self._fd < 0 or self._closing:
                    raise InputClosedError
                if not view:
                    return
                try:
                    view = view[os.write(self._fd, view) :]
                except BlockingIOError:
                    await self._wait()
                except OSError:
                    self.close()
                    raise InputClosedError from None

    async def finish(self) -> None:
        """Close it after what is being written: the command reads its end.

        Raises:
            InputClosedError: E5011: there is none, it is closed, or it is a terminal.
        """
        async with self._writing:
            if self._fd < 0 or not self._owned:
                raise InputClosedError
            self.close()

    def close(self) -> None:
        """Close it at once. Idempotent."""
        fd, self._fd = self._fd, -1
        self._closing = True
        if fd < 0:
            return
        asyncio.get_running_loop().remove_writer(fd)
        self._ready.set()
        if self._owned:
            os.close(fd)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        fd = self._fd
        self._ready.clear()
        loop.add_writer(fd, self._ready.set)
        try:
            await self._ready.wait()
        finally:
            if self._fd == fd:
                loop.remove_writer(fd)
