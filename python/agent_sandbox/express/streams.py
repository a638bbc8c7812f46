"""Server streams of Connect RPCs: one request message in, envelopes out until somebody ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agent_sandbox.errors import AgentSandboxError, ArgumentError, TransferTimeoutError
from agent_sandbox.express.answers import CHUNK_BYTES
from agent_sandbox.express.failures import stream_end
from agent_sandbox.express.requests import (
    MAX_BODY_BYTES,
    body,
    header,
    until_disconnected,
    whole_number,
)
from agent_sandbox.express.sandbox import Sandbox
from agent_sandbox.wire import connect, headers

Emit = Callable[[bytes], Awaitable[None]]
"""Sends one message of a stream."""


def check_protocol(request: Request, media_type: str) -> None:
    """Accept what is Connect in JSON without compression.

    Raises:
        ArgumentError: E2001: another media type, version or encoding.
    """
    given = (header(request, "content-type") or b"").partition(b";")[0].strip().lower()
    if (
        given != media_type.encode()
        or header(request, headers.CONNECT_PROTOCOL_VERSION)
        not in (None, connect.PROTOCOL_VERSION.encode())
        or header(request, "content-encoding") not in (None, b"identity")
    ):
        raise ArgumentError


def seconds(request: Request, name: str, *, unit_s: float) -> float | None:
    """Return a header's duration in seconds, None where it is absent or zero.

    Raises:
        ArgumentError: E2001: it is no whole number.
    """
    number = whole_number(request, name)
    return number * unit_s if number else None


class LongAnswer:
    """An ASGI application that sends the answer of a unary RPC in pieces, as its caller takes it.

    Until then it counts as one of the sandbox's long answers, and the next ones wait: what callers
    do not take cannot pile up.

    Args:
        sandbox: What the RPC is about.
        work: Returns the answer; runs under a lease.
    """

    def __init__(self, sandbox: Sandbox, work: Callable[[], Awaitable[bytes]]) -> None:
        self._sandbox = sandbox
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Work, and send the answer.

        Raises:
            AgentSandboxError: Before anything was sent.
        """
        async with self._sandbox.use(), self._sandbox.long_answers:
            data = await self._work()
            lines = [
                (b"content-type", connect.UNARY_TYPE.encode()),
                (b"content-length", str(len(data)).encode()),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": lines})
            for start in range(0, len(data), CHUNK_BYTES):
                chunk = data[start : start + CHUNK_BYTES]
                more = start + CHUNK_BYTES < len(data)
                await send({"type": "http.response.body", "body": chunk, "more_body": more})


class ServerStream:
    """An ASGI application that sends a stream until it ends, fails, or the caller goes.

    A failure travels in the last envelope; the HTTP status is 200 all the same, as the protocol
    has it.

    Args:
        request: The call; its deadline (`connect-timeout-ms`) is kept.
        run: Gets the request, its one message, and the function that sends messages.
        max_message_bytes: Longest request message.
        keeps_deadline: False where `run` keeps the deadline itself.
    """

    def __init__(
        self,
        request: Request,
        run: Callable[[Request, bytes, Emit], Awaitable[None]],
        *,
        max_message_bytes: int = MAX_BODY_BYTES,
        keeps_deadline: bool = True,
    ) -> None:
        self._request = request
        self._run = run
        self._max_message_bytes = max_message_bytes
        self._keeps_deadline = keeps_deadline
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the stream."""

        async def emit(message: bytes) -> None:
            await self._send(send, connect.encode_envelope(message), more=True)

        try:
            message = await self._message()
            if await self._work(message, receive, emit):
                await self._send(send, connect.encode_end(), more=False)
        except AgentSandboxError as error:
            scope["agent_sandbox.code"] = error.code
            await self._send(send, stream_end(error), more=False, error=error)

    async def _message(self) -> bytes:
        limit = self._max_message_bytes
        decoder = connect.EnvelopeDecoder(max_message_bytes=limit, broken=ArgumentError)
        messages = decoder.feed(await body(self._request, limit + connect.PREFIX_BYTES))
        decoder.finish(needs_end=False)
        if len(messages) != 1 or messages[0].end:
            raise ArgumentError
        return messages[0].data

    async def _work(self, message: bytes, receive: Receive, emit: Emit) -> bool:
        """Run the call; return whether anybody is left to hear of its end."""
        deadline_s = seconds(self._request, headers.CONNECT_TIMEOUT_MS, unit_s=0.001)
        if not self._keeps_deadline:
            deadline_s = None
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(self._run(self._request, message, emit))
        gone = loop.create_task(until_disconnected(receive))
        try:
            await asyncio.wait(
                (work, gone), timeout=deadline_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not work.done() and not gone.done():
                raise TransferTimeoutError
            if work.done():
                work.result()
            return work.done()
        finally:
            for task in (work, gone):
                task.cancel()
            await asyncio.wait((work, gone))

    async def _send(
        self, send: Send, data: bytes, *, more: bool, error: AgentSandboxError | None = None
    ) -> None:
        if not self._started:
            self._started = True
            lines = [
                (b"content-type", connect.STREAM_TYPE.encode()),
                (b"cache-control", b"no-store"),
            ]
            if error:
                lines.append((headers.ERROR_CODE.encode(), error.code.encode()))
            await send({"type": "http.response.start", "status": 200, "headers": lines})
        await send({"type": "http.response.body", "body": data, "more_body": more})
