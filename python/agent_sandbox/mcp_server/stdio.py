"""Our STDIO transport: bounded lines, an answer for every bad one, and an end in bounded time."""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server.lowlevel.server import Server
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import TypeAdapter

from agent_sandbox.limits import MAX_STDIO_LINE_BYTES
from agent_sandbox.mcp_server.envelopes import (
    LineSplitter,
    LongLine,
    Refusal,
    canonical_id,
    error_answer,
    parse_message,
    peek_id,
)
from agent_sandbox.mcp_server.splice import LineRequest, Spliced

PIPE_BYTES = 1_048_576
"""Asked of the kernel for both pipes: the largest file passes with few wake-ups."""

READ_BYTES = 262_144
FLUSH_S = 0.3
"""Longest wait for answers that are ready when the client has closed its side."""

UNREAD_MESSAGES = 16
"""Messages that may wait for the server before reading pauses."""

MAX_IN_FLIGHT = 256
"""Requests that may be served at once; each may hold a file until its answer is read."""

MAX_IN_FLIGHT_BYTES = 67_108_864
"""The same for the lines of all of them."""

ROOM_FOR_PINGS = 16
"""Pings that are served beyond: a client asks by them whether a busy server is alive."""

LOOK_S = 0.1
"""While reading pauses, how often it is looked whether the client has gone."""

_LONG = f"The line is longer than {MAX_STDIO_LINE_BYTES:,} bytes."
_LONG_ANSWER = f"The answer is longer than a line may be ({MAX_STDIO_LINE_BYTES:,} bytes)."
_TOO_MANY = "Too many requests are being served: send this one again after an answer."
_IN_FLIGHT = "A request with this id is being served: use another id."


class _OwnAnswer(SessionMessage):
    """An answer of this transport's: it ends no request, whatever its id."""


@dataclass(frozen=True, slots=True)
class Wire:
    """The two descriptors that carry the protocol, away from 0 and 1."""

    read_fd: int
    write_fd: int


@contextmanager
def diverted_stdio() -> Iterator[Wire]:
    """Move the protocol off descriptors 0 and 1, where nothing else can disturb it.

    Within, 0 reads as empty and 1 goes to standard error, for Python, C libraries and children
    alike. Afterwards both are as before; the duplicates stay open, since a thread may still be
    reading.
    """
    wire = Wire(fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
    for fd in (wire.read_fd, wire.write_fd):
        with suppress(OSError):  # it is no pipe, or the limit of this user is reached
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.dup2(null, 0)
        try:
            os.dup2(2, 1)
        except OSError:  # standard error is closed
            os.dup2(null, 1)
        yield wire
    finally:
        os.dup2(wire.read_fd, 0)
        os.dup2(wire.write_fd, 1)
        os.close(null)


async def serve_stdio(
    server: Server[object],
    wire: Wire,
    *,
    on_eof: Callable[[], None],
    on_end: Callable[[], None],
) -> None:
    """Serve one client until it closes its side, or `wire` breaks, or the task is cancelled.

    Lines over 8 MiB and malformed ones are answered with an error and the next line is served.
    What is refused while its id is in flight is answered with `id: null`, since an answer with that
    id would settle the client's first call. At most 256 requests, of 64 MiB together, are served at
    once; further ones are refused, while cancellations and pings still get through. From a client
    that reads no answers nothing more is read in the end.

    Args:
        server: What answers.
        wire: Descriptors to read from and to write to.
        on_eof: Called the moment the client's side is closed, in another thread: the event loop
            may be busy.
        on_end: Called when the client is gone, before calls in flight have ended.
    """
    connection = _Connection(wire, on_eof, on_end)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(connection.forward)
        tasks.start_soon(connection.write)
        try:
            await server.run(
                connection.to_server, connection.from_server, server.create_initialization_options()
            )
        except* anyio.BrokenResourceError:
            pass  # it was told to stop while the SDK handed on a message of the client's
        connection.end()
        await connection.flushed.wait()
        tasks.cancel_scope.cancel()


class _Connection:
    def __init__(self, wire: Wire, on_eof: Callable[[], None], on_end: Callable[[], None]) -> None:
        self._wire = wire
        self._on_eof = on_eof
        self._on_end = on_end
        self._in_flight: dict[RequestId, LineRequest] = {}
        self._in_flight_bytes = 0
        self._forward: MemoryObjectSendStream[SessionMessage | Exception]
        self.to_server: MemoryObjectReceiveStream[SessionMessage | Exception]
        self._forward, self.to_server = anyio.create_memory_object_stream(0)
        self._written: MemoryObjectReceiveStream[SessionMessage]
        self.from_server: MemoryObjectSendStream[SessionMessage]
        self.from_server, self._written = anyio.create_memory_object_stream(0)
        self._own_answers = self.from_server.clone()
        self._writing: anyio.CancelScope | None = None
        self._write_until = math.inf
        self.flushed = anyio.Event()

    async def forward(self) -> None:
        """Hand the client's messages to the server, until the client is gone."""
        inbox = _Inbox(self._wire.read_fd, self._on_eof)
        try:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async with inbox.messages:
                    async for message, size_bytes in inbox.messages:
                        inbox.room.release()
                        await self._take(message, size_bytes)
        finally:
            self.end()

    async def _take(self, message: JSONRPCMessage | Refusal, size_bytes: int) -> None:
        if isinstance(message, Refusal):
            await self._refuse(message.answer)
            return
        metadata = None
        if isinstance(message, JSONRPCRequest):
            key = canonical_id(message.id)
            if key in self._in_flight:
                await self._refuse(error_answer(INVALID_REQUEST, _IN_FLIGHT))
                return
            if not self._has_room(message, size_bytes):
                await self._refuse(error_answer(INVALID_REQUEST, _TOO_MANY, message.id))
                return
            request = self._in_flight[key] = LineRequest(size_bytes)
            self._in_flight_bytes += size_bytes

            async def free() -> None:  # a cancelled request ends without an answer
                self._free(key)

            metadata = ServerMessageMetadata(request_context=request, on_request_unanswered=free)
        await self._forward.send(SessionMessage(message, metadata=metadata))

    def _has_room(self, request: JSONRPCRequest, size_bytes: int) -> bool:
        most = MAX_IN_FLIGHT + (ROOM_FOR_PINGS if request.method == "ping" else 0)
        return not self._in_flight or (
            len(self._in_flight) < most
            and self._in_flight_bytes + size_bytes <= MAX_IN_FLIGHT_BYTES
        )

    def _free(self, key: RequestId) -> LineRequest | None:
        request = self._in_flight.pop(key, None)
        if request is not None:
            self._in_flight_bytes -= request.size_bytes
        return request

    async def _refuse(self, answer: JSONRPCError) -> None:
        if answer.id is not None and canonical_id(answer.id) in self._in_flight:
            answer = answer.model_copy(update={"id": None})
        await self._own_answers.send(_OwnAnswer(answer))

    def end(self) -> None:
        """Take nothing more from the client, and stop writing soon."""
        self._on_end()
        # A client that has gone may have stopped reading, too: nothing waits for it any longer.
        self._write_until = min(self._write_until, anyio.current_time() + FLUSH_S)
        if self._writing is not None:
            self._writing.deadline = self._write_until
        self._forward.close()
        self._own_answers.close()

    async def write(self) -> None:
        """Write the server's messages, one line each; drop them some time after the end."""
        try:
            async with self._written:
                async for item in self._written:
                    request = self._answered(item)
                    if anyio.current_time() >= self._write_until:
                        continue
                    line = to_line(item.message, request.spliced if request else None)
                    with anyio.CancelScope(deadline=self._write_until) as self._writing:
                        await _write_line(self._wire.write_fd, line)
        except OSError:  # the client has closed its end
            self.end()
        finally:
            self.flushed.set()

    def _answered(self, item: SessionMessage) -> LineRequest | None:
        request_id = _answered_id(item.message)
        if request_id is None or isinstance(item, _OwnAnswer):
            return None
        return self._free(canonical_id(request_id))


_SERIALIZERS: dict[type, TypeAdapter[Any]] = {
    kind: TypeAdapter(kind)
    for kind in (JSONRPCRequest, JSONRPCNotification, JSONRPCResponse, JSONRPCError)
}


def to_line(message: JSONRPCMessage, spliced: Spliced | None = None) -> bytes:
    """Return a message as a line; one that is too long becomes the error that answers it."""
    line = _SERIALIZERS[type(message)].dump_json(message, by_alias=True, exclude_unset=True) + b"\n"
    if spliced is not None:
        line = spliced.fill(line)
    if len(line) <= MAX_STDIO_LINE_BYTES + 1:
        return line
    return to_line(error_answer(INTERNAL_ERROR, _LONG_ANSWER, _answered_id(message)))


def _answered_id(message: JSONRPCMessage) -> RequestId | None:
    return message.id if isinstance(message, JSONRPCResponse | JSONRPCError) else None


async def _write_line(fd: int, line: bytes) -> None:
    # A pipe that polls as writable takes PIPE_BUF bytes without blocking: no thread for those.
    if len(line) <= select.PIPE_BUF and _is_writable(fd, 0):
        _write_all(fd, line)
    else:
        await anyio.to_thread.run_sync(_write_apart, fd, line, abandon_on_cancel=True)


def _write_apart(fd: int, line: bytes) -> None:
    # The thread may be left behind: the number that it writes to must not become another file's.
    own = os.dup(fd)
    try:
        _write_all(own, line)
    finally:
        os.close(own)


def _write_all(fd: int, line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:  # the other side made the pipe non-blocking
            _is_writable(fd, None)


def _is_writable(fd: int, timeout_ms: int | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(timeout_ms))


_Received: TypeAlias = tuple[JSONRPCMessage | Refusal, int]
"""A message, or what answers one, and how long its line was."""


class _Inbox:
    """Messages from a descriptor, read and parsed in a thread of their own.

    `os.read` cannot be cancelled, so the thread is a daemon and is left behind at the end.
    """

    def __init__(self, fd: int, on_eof: Callable[[], None]) -> None:
        self._fd = fd
        self._on_eof = on_eof
        self._told = False
        self._loop = asyncio.get_running_loop()
        self.room = threading.Semaphore(UNREAD_MESSAGES)
        self._send: MemoryObjectSendStream[_Received]
        self.messages: MemoryObjectReceiveStream[_Received]
        self._send, self.messages = anyio.create_memory_object_stream(math.inf)
        threading.Thread(target=self._read, name="mcp-stdin", daemon=True).start()

    def _read(self) -> None:
        splitter = LineSplitter(MAX_STDIO_LINE_BYTES)
        with suppress(OSError, RuntimeError):  # the descriptor or the event loop is gone
            while chunk := _read_some(self._fd):
                for line in splitter.feed(chunk):
                    if isinstance(line, LongLine) or line.strip():
                        self._wait_for_room()
                        size_bytes = 0 if isinstance(line, LongLine) else len(line)
                        self._loop.call_soon_threadsafe(self._deliver, (_parse(line), size_bytes))
        self._tell_eof()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._send.close)

    def _wait_for_room(self) -> None:
        # A client that reads no answers stops the server from taking messages, and us from
        # reading: its going would never be met in what is left to read.
        while not self.room.acquire(timeout=LOOK_S):
            if _is_hung_up(self._fd):
                self._tell_eof()

    def _tell_eof(self) -> None:
        if not self._told:
            self._told = True
            self._on_eof()

    def _deliver(self, received: _Received) -> None:
        with suppress(anyio.BrokenResourceError):  # nobody listens any more
            self._send.send_nowait(received)


def _parse(line: bytes | LongLine) -> JSONRPCMessage | Refusal:
    if isinstance(line, LongLine):
        return Refusal(error_answer(INVALID_REQUEST, _LONG, peek_id(line.head, line.tail)))
    return parse_message(line)


def _is_hung_up(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLRDHUP)  # of a socket; a pipe tells it unasked
    return bool(poll.poll(0))


def _read_some(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, READ_BYTES)
        except BlockingIOError:  # the other side made the pipe non-blocking
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll()
