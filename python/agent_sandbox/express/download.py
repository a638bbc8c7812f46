"""`GET /files`: one file, streamed from disk to socket."""

from __future__ import annotations

import asyncio
import os
import zlib
from collections.abc import Callable
from typing import TypeVar

from starlette.types import Message, Receive, Scope, Send

from agent_sandbox.errors import FileMissingError
from agent_sandbox.express.answers import CHUNK_BYTES
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.failures import os_errors
from agent_sandbox.express.requests import until_disconnected
from agent_sandbox.express.sandbox import Sandbox

_T = TypeVar("_T")

WHOLE_BYTES = 1_048_576
"""Files up to here are read in one go, by the same thread that opens them."""

_GZIP_MIN_BYTES = 1_024
_GZIP_LEVEL = 1
_GZIP_WORTH = 0.9
"""A file whose first chunk does not shrink to this is sent as it is."""


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Return whether an `Accept-Encoding` asks for gzip (RFC 9110 section 12.5.3)."""
    weights: dict[str, float] = {}
    for item in (accept_encoding or b"").decode("latin-1").lower().split(","):
        coding, *parameters = (part.strip() for part in item.split(";"))
        weights[coding] = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition("=")
            if name.strip() == "q":
                try:
                    weights[coding] = float(value)
                except ValueError:
                    weights[coding] = 0.0
    return weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0))) > 0


class Download:
    """An ASGI application that sends a file.

    Without compression the answer carries the length that the file had when it was opened, and
    exactly so many bytes: if the file shrinks meanwhile the connection is cut, so that a short
    answer never looks whole. A compressed answer is chunked and cut in the same case.

    Args:
        sandbox: Whose file it is.
        path: Canonical path.
        disk: Threads for reading.
        gzip: Whether the caller asks for gzip.
        head: Whether only the headers are wanted.
    """

    def __init__(self, sandbox: Sandbox, path: str, disk: Disk, *, gzip: bool, head: bool) -> None:
        self._sandbox = sandbox
        self._path = path
        self._disk = disk
        self._gzip = gzip
        self._head = head
        self._file: Descriptor | None = None
        self._size = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file.

        Raises:
            AgentSandboxError: Before anything was sent.
        """
        async with self._sandbox.use():
            try:
                first = await self._run(self._open)
                deflate = None
                if self._gzip and not self._head and self._size >= _GZIP_MIN_BYTES:
                    deflate = await self._run(lambda: _Deflate.if_worth_it(first))
                await send(_start(None if deflate else self._size, gzip=deflate is not None))
                if self._head:
                    await send({"type": "http.response.body", "body": b""})
                elif deflate is None and len(first) == self._size:
                    await _send_chunk(send, first, more=False)
                else:
                    await self._stream(first, deflate, receive, send)
            finally:
                if self._file:
                    self._file.close()

    async def _run(self, work: Callable[[], _T]) -> _T:
        return await self._disk.run(work, slots=self._sandbox.disk_slots)

    def _open(self) -> bytes:
        """Open the file and return its first bytes: all of them if they are few."""
        self._file, status = self._sandbox.tree.open_file(self._path)
        self._size = status.st_size
        if self._head:
            return b""
        with os_errors():
            whole = self._size <= WHOLE_BYTES
            first = os.pread(self._file.fd, self._size if whole else CHUNK_BYTES, 0)
        if whole:
            # What was read is the file: it may have shrunk since its size was asked for.
            self._size = len(first)
        elif not first:
            raise FileMissingError
        return first

    def _read(self, offset: int) -> bytes:
        fd = self._file.fd if self._file else -1
        with os_errors():
            return os.pread(fd, min(CHUNK_BYTES, self._size - offset), offset)

    async def _stream(
        self, first: bytes, deflate: _Deflate | None, receive: Receive, send: Send
    ) -> None:
        gone = asyncio.get_running_loop().create_task(until_disconnected(receive))
        try:
            chunk, offset = first, 0
            while not gone.done():
                offset += len(chunk)
                last = offset >= self._size
                if deflate:
                    data = chunk
                    chunk = await self._run(lambda: deflate.add(data, last=last))  # noqa: B023 - run at once
                if chunk or last:
                    await _send_chunk(send, chunk, more=not last)
                if last:
                    return
                chunk = await self._run(lambda: self._read(offset))  # noqa: B023 - run at once
                if not chunk:
                    return  # it shrank: returning early makes the server cut the connection
        finally:
            gone.cancel()


class _Deflate:
    """A gzip stream; `add` blocks and releases the interpreter's lock."""

    def __init__(self) -> None:
        self._stream = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)

    @classmethod
    def if_worth_it(cls, first: bytes) -> _Deflate | None:
        sample = first[:65_536]
        shrunk = len(zlib.compress(sample, _GZIP_LEVEL)) < _GZIP_WORTH * len(sample)
        return cls() if shrunk else None

    def add(self, data: bytes, *, last: bool) -> bytes:
        out = self._stream.compress(data)
        return out + self._stream.flush() if last else out


def _start(size: int | None, *, gzip: bool) -> Message:
    lines = [
        (b"content-type", b"application/octet-stream"),
        (b"cache-control", b"no-store"),
        (b"vary", b"accept-encoding"),
        (b"x-content-type-options", b"nosniff"),
    ]
    if gzip:
        lines.append((b"content-encoding", b"gzip"))
    if size is not None:
        lines.append((b"content-length", str(size).encode()))
    return {"type": "http.response.start", "status": 200, "headers": lines}


async def _send_chunk(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})
