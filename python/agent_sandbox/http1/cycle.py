"""One request and its answer, between the connection and the ASGI application."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Protocol

from agent_sandbox.http1.chunked import ChunkedDecoder, ChunkedError
from agent_sandbox.http1.head import Head, Headers, tokens, values

HIGH_WATER_BYTES = 65_536
"""Body bytes that may wait for the application before the connection stops reading."""

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_NO_LINGER = struct.pack("ii", 1, 0)  # a close is a reset (socket(7), SO_LINGER)
_logger = logging.getLogger("agent_sandbox.http1")


class Done(Protocol):
    """Called once, when the answer is complete or the application has ended without one.

    `reusable` says that another request may follow on the connection, `body_read` that no byte of
    this one's body can still be on its way.
    """

    def __call__(self, *, reusable: bool, body_read: bool) -> None:
        """End the request."""


class Cycle:
    """The two ASGI callables of one request, and the flow of its body.

    A body is ended only when its framing says so: after a malformed chunk or an early close the
    application gets the bytes so far and then `http.disconnect`, never a last `more_body: False`.
    """

    def __init__(
        self,
        head: Head,
        scope: dict[str, Any],
        transport: asyncio.Transport,
        writable: asyncio.Event,
        default_headers: Headers,
        done: Done,
        failure: Callable[[], bytes],
    ) -> None:
        self.head = head
        self.scope = scope
        self.transport = transport
        self._writable = writable
        self._default_headers = default_headers
        self._done = done
        self._failure = failure
        self._left = head.framing.content_length or 0
        self._chunks = ChunkedDecoder() if head.framing.chunked else None
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._arrived = asyncio.Event()
        self._end_given = False  # the application has seen the last body message
        self._broken = False  # no further body bytes can come
        self._gone = False  # the connection is lost
        self._wants_continue = head.expects_continue
        self._started = False
        self._complete = False
        self._keep_alive = head.keep_alive
        self._send_chunked = False
        self._send_left: int | None = None
        self._unsent_head = b""  # goes out with the first of the body, if that comes at once
        self._bodyless = head.method == "HEAD"

    @property
    def _body_read(self) -> bool:
        return self._chunks.ended if self._chunks is not None else self._left == 0

    # --- from the connection --------------------------------------------------------------

    def feed(self, data: bytes) -> bytes:
        """Take body bytes from the connection and return what lies behind the body's end."""
        if self._broken:
            return b""
        pieces: list[bytes]
        if self._chunks is None:
            if len(data) <= self._left:
                pieces, rest = [data], b""
            else:
                pieces, rest = [data[: self._left]], data[self._left :]
            self._left -= len(pieces[0])
        else:
            try:
                pieces, rest = self._chunks.feed(data)
            except ChunkedError:
                self._broken = True
                self._arrived.set()
                return b""
        for piece in filter(None, pieces):
            self._queue.append(piece)
            self._queued += len(piece)
        if self._queued > HIGH_WATER_BYTES:
            self.transport.pause_reading()
        self._arrived.set()
        return rest

    @property
    def still_to_come(self) -> int:
        """How much of a body with a `Content-Length` the connection has not fed yet."""
        return 0 if self._broken else self._left

    def take(self, buffer: memoryview) -> int:
        """Move what waits for the application into `buffer` and return the count; see `fill`."""
        self._invite()
        count = 0
        while self._queue and count < len(buffer):
            piece = self._queue.popleft()
            fits = len(buffer) - count
            buffer[count : count + len(piece)] = piece[:fits]
            if len(piece) > fits:
                self._queue.appendleft(piece[fits:])
            taken = min(len(piece), fits)
            self._queued -= taken
            count += taken
        return count

    def took(self, count: int) -> None:
        """Count body bytes that went past `feed`."""
        self._left -= count

    def disconnect_after_body(self) -> None:
        """The peer sends nothing more; it may still read."""
        self._broken = True
        self._arrived.set()

    def disconnect(self) -> None:
        """The connection is lost."""
        self._broken = self._gone = True
        self._arrived.set()

    # --- to the application ---------------------------------------------------------------

    async def run(self, app: Callable[..., Awaitable[None]]) -> None:
        """Call the application, and close or reuse the connection after it."""
        try:
            await app(self.scope, self.receive, self.send)
        except Exception as error:  # noqa: BLE001  # an edge: what the application raises ends here
            # The type alone: an embedder's exception may hold what no log may hold.
            _logger.error("the application failed with %s", type(error).__name__)
        finally:
            if not self._complete and not self._gone:
                if self._started:
                    self._reset()
                else:
                    self._fail()

    def _fail(self) -> None:
        self._started, self._keep_alive = True, False
        head, end, body = self._failure().partition(b"\r\n\r\n")
        self.transport.write(head + end + (b"" if self._bodyless else body))
        self._finish()

    def _finish(self) -> None:
        self._complete = True
        self._arrived.set()
        reusable = self._keep_alive and self._body_read
        self._done(reusable=reusable, body_read=self._body_read)

    async def receive(self) -> dict[str, Any]:
        """ASGI receive: body messages, then `http.disconnect` once the answer or peer is gone."""
        self._invite()
        while True:
            if self._complete or self._gone:
                return {"type": "http.disconnect"}
            if self._queue:
                piece = self._queue.popleft()
                self._queued -= len(piece)
                more = bool(self._queue) or not self._body_read
                self._end_given = not more
                if not self._queue:
                    self.transport.resume_reading()
                return {"type": "http.request", "body": piece, "more_body": more}
            if self._body_read and not self._end_given:
                self._end_given = True
                return {"type": "http.request", "body": b"", "more_body": False}
            if self._broken:
                return {"type": "http.disconnect"}
            self._arrived.clear()
            await self._arrived.wait()

    def _invite(self) -> None:
        if self._wants_continue and not self._started and not self._gone:
            # Not needed once the client has started to send on its own (RFC 9110 10.1.1).
            if not self._queue and not self._body_read:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._wants_continue = False

    async def send(self, message: dict[str, Any]) -> None:
        """ASGI send. Waits while the peer does not read."""
        await self._writable.wait()
        if self._gone:
            return
        if not self._started:
            self._start_response(message)
        elif not self._complete:
            self._send_body(message)
        else:
            raise RuntimeError("the response is complete already")

    def _start_response(self, message: dict[str, Any]) -> None:
        if message["type"] != "http.response.start":
            raise RuntimeError("the response has not started")
        status: int = message["status"]
        headers: Headers = [*self._default_headers, *message.get("headers", ())]
        headers = [(name.lower(), value) for name, value in headers]
        if not all(_NAME.fullmatch(n) and _VALUE.fullmatch(v) for n, v in headers):
            raise RuntimeError("a response header is malformed")
        if b"close" in tokens(headers, b"connection"):
            self._keep_alive = False
        self._bodyless = self._bodyless or status in (204, 304)
        length = values(headers, b"content-length")
        if self._bodyless:
            pass
        elif length:
            self._send_left = int(length[0])
        elif self.head.http_version == "1.1":
            self._send_chunked = True
            headers.append((b"transfer-encoding", b"chunked"))
        else:
            self._keep_alive = False  # the close delimits the body
        if not self._body_read:
            self._keep_alive = False  # whoever refuses a body unread does not read it later
        if not self._keep_alive and not values(headers, b"connection"):
            headers.append((b"connection", b"close"))
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, _phrase(status))]
        lines += [b"%b: %b\r\n" % header for header in headers]
        self._started = True
        self._unsent_head = b"".join(lines) + b"\r\n"
        # A stream of events may have nothing to say for long, and its reader waits for the head.
        asyncio.get_running_loop().call_soon(self._flush_head)

    def _flush_head(self) -> None:
        if self._unsent_head and not self._gone:
            self.transport.write(self._unsent_head)
        self._unsent_head = b""

    def _send_body(self, message: dict[str, Any]) -> None:
        if message["type"] != "http.response.body":
            raise RuntimeError("the response has started already")
        body: bytes = b"" if self._bodyless else message.get("body", b"")
        last = not message.get("more_body", False)
        if self._send_left is not None:
            self._send_left -= len(body)
            if self._send_left < 0 or (last and self._send_left):
                self._keep_alive = False
                self._reset()
                raise RuntimeError("the body and its Content-Length differ")
        if self._send_chunked and body:
            body = b"%x\r\n%b\r\n" % (len(body), body)
        if self._send_chunked and last:
            body += b"0\r\n\r\n"
        if self._unsent_head:
            body, self._unsent_head = self._unsent_head + body, b""
        if body:
            self.transport.write(body)
        if last:
            self._finish()

    def _reset(self) -> None:
        """Cut the connection so that the peer cannot take a part for the whole.

        `abort` alone ends like any close, which is the good end of an answer without a length. A
        reset takes what is under way along; where a length or chunks tell, the peer keeps that.
        """
        connection = self.transport.get_extra_info("socket")
        told = self._send_chunked or self._send_left is not None
        if connection is not None and not told:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()


def _phrase(status: int) -> bytes:
    try:
        return HTTPStatus(status).phrase.encode()
    except ValueError:
        return b""
