"""One ASGI guard before the SDK's session manager: what it would let through, log or repeat."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE
from mcp_types import INVALID_PARAMS, PARSE_ERROR, RequestId
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_sandbox.mcp_server import splice, strict_json
from agent_sandbox.mcp_server.envelopes import DOUBTFUL, canonical_id, readable_id
from agent_sandbox.mcp_server.http_answers import drop_body, refuse
from agent_sandbox.mcp_server.http_room import NoRoomError, Room
from agent_sandbox.mcp_server.principals import Principal, principal_of_scope

LARGE_BYTES = 65_536
"""Bodies over this size wait for room, and are parsed in turns of their own."""

_CANCELLED = "The connection was closed for sending, which cancels a call: keep it open."
"""TCP tells a client that has gone no different from one that still reads: the latter hears it."""

_LONG_OPENING = f"A request that opens a session has at most {LARGE_BYTES:,} bytes."
_NO_ROOM = "Too many large requests are being served: send this one again in a moment."
_NO_MESSAGE = "The message is not valid JSON-RPC 2.0."


class HttpGuard:
    """Bounds the body in time, and keeps requests from mixing.

    - A body that has not arrived in time is 408, one over the SDK's 4 MiB is 413.
    - Large bodies that are in memory are bounded in number; others wait unread, or are 503.
    - Up to 2025-11-25, a request whose id is in flight in its session is 400: the SDK would give
      its answer to the other one. Such a call runs on when its client disconnects.
    - A principal with too many sessions opens no other: 503, while others go on. What opens one is
      64 KiB at most, since the session keeps it.
    - On 2026-07-28 the call is cancelled when its client disconnects, or ends its side alone.
    - A body that is not strict JSON is 400: the SDK reads NaN, names said twice and UTF-16.
    - The SDK's answers to malformed envelopes quote the parser; they get a fixed text.
    - A refusal opens no session, so it names none; the SDK would give it the id of a dead one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        may_open: Callable[[Principal], Awaitable[bool]],
        body_deadline_s: float,
        max_body_bytes: int = DEFAULT_MAX_REQUEST_BODY_SIZE,
        room: Room | None = None,
    ) -> None:
        self._app = app
        self._may_open = may_open
        self._body_deadline_s = body_deadline_s
        self._max_body_bytes = max_body_bytes
        self._room = room or Room(body_deadline_s)
        self._turn = anyio.Lock()
        self._in_flight: defaultdict[tuple[Principal, str], set[RequestId]] = defaultdict(set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        headers = Headers(scope=scope)
        if "mcp-session-id" not in headers:
            send = _without_dead_session(send)
        if scope["method"] != "POST":
            # No event of ours has an id, so there is nothing to resume; the SDK would not answer.
            kept = [item for item in scope["headers"] if item[0] != b"last-event-id"]
            await self._app({**scope, "headers": kept}, receive, send)
            return
        if _is_small(headers):
            await self._serve_post(scope, headers, receive, send)
            return
        try:
            async with self._room.held(principal_of_scope(scope)):
                await self._serve_post(scope, headers, receive, send)
        except NoRoomError:
            await drop_body(receive)
            await refuse(503, _NO_ROOM, {"retry-after": "1"})(scope, receive, send)

    async def _serve_post(
        self, scope: Scope, headers: Headers, receive: Receive, send: Send
    ) -> None:
        body = await self._body(headers, receive)
        if isinstance(body, Response):
            await body(scope, receive, send)
            return
        if len(body) > LARGE_BYTES:
            # Those that are complete in one turn of the loop go on in turns of their own: each is
            # some milliseconds of parsing, and others wait for the loop.
            async with self._turn:
                await anyio.lowlevel.checkpoint()
        request = _Request(body, receive)
        send = _Filling(send, splice.offer(scope)).send
        version = headers.get("mcp-protocol-version")
        has_session = version is None or version in HANDSHAKE_PROTOCOL_VERSIONS
        try:
            # On 2026-07-28 the tools say which argument has a lone surrogate.
            message = strict_json.parse(body, lone_surrogates=not has_session)
            request_id = _request_id(message)
        except strict_json.NotJsonError as error:
            text = f"Parse error: the body {error.reason}."
            await refuse(400, text, code=PARSE_ERROR)(scope, receive, send)
            return
        except strict_json.DoubtfulJsonError:
            await refuse(400, DOUBTFUL)(scope, receive, send)
            return
        except _NoIdError:  # the SDK would take it for a notification, and never answer
            await refuse(400, _NO_MESSAGE)(scope, receive, send)
            return
        if has_session:
            await self._serve_in_session(scope, headers, request_id, request, send)
        else:
            await self._serve_until_disconnect(scope, request, send)

    async def _body(self, headers: Headers, receive: Receive) -> bytes | Response:
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > self._max_body_bytes:
            return await self._too_large(receive)
        chunks: list[bytes] = []
        size = 0
        with anyio.move_on_after(self._body_deadline_s):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return refuse(400, "The client went away.")  # nobody reads this
                chunk: bytes = message.get("body", b"")
                size += len(chunk)
                if size > self._max_body_bytes:
                    return await self._too_large(receive)
                chunks.append(chunk)
                if not message.get("more_body", False):
                    return chunks[0] if len(chunks) == 1 else b"".join(chunks)
        return refuse(408, "The body did not arrive in time.")

    async def _too_large(self, receive: Receive) -> Response:
        await drop_body(receive)
        return refuse(413, "The body is too large.")

    async def _serve_in_session(
        self,
        scope: Scope,
        headers: Headers,
        request_id: RequestId | None,
        request: _Request,
        send: Send,
    ) -> None:
        answer = _FixedTexts(send)
        session_id = headers.get("mcp-session-id")
        if session_id is None:
            if len(request.body) > LARGE_BYTES:  # a session keeps what its client says of itself
                await refuse(413, _LONG_OPENING)(scope, request.receive, send)
                return
            if not await self._may_open(principal_of_scope(scope)):
                await refuse(503, "Too many open sessions.")(scope, request.receive, send)
                return
            await self._app(scope, request.receive, answer.send)
            return
        if request_id is None:
            await self._app(scope, request.receive, answer.send)
            return
        key = canonical_id(request_id)
        # Of one principal: what a session of others is doing must not be told, nor disturbed.
        in_flight = self._in_flight[principal_of_scope(scope), session_id]
        if key in in_flight:
            await refuse(400, "A request with this id is being served: use another id.")(
                scope, request.receive, send
            )
            return
        in_flight.add(key)
        try:
            await self._app(scope, request.receive, answer.send)
        finally:
            in_flight.discard(key)
            if not in_flight:
                del self._in_flight[principal_of_scope(scope), session_id]

    async def _serve_until_disconnect(self, scope: Scope, request: _Request, send: Send) -> None:
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                await request.watch()
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            await self._app(scope, request.receive, answer)
            tasks.cancel_scope.cancel()
        if not started:
            await refuse(400, _CANCELLED)(scope, request.receive, send)


class _Request:
    """A body that was read already, replayed to the application."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self.body = body
        self._receive = receive
        self._replayed = False
        self._watched = False
        self._gone = anyio.Event()

    async def receive(self) -> Message:
        """Return the body, then wait for the client to go away."""
        if not self._replayed:
            self._replayed = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        if not self._watched:
            return await self._receive()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def watch(self) -> None:
        """Wait for the client to go away, and let the application know too."""
        self._watched = True
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone.set()


class _Filling:
    """Puts the texts that an answer has left out back into it."""

    def __init__(self, send: Send, spliced: splice.Spliced) -> None:
        self._send = send
        self._spliced = spliced
        self._start: Message | None = None

    async def send(self, message: Message) -> None:
        """Pass a message on; the head of an answer to be filled waits for its body."""
        if not self._spliced.texts and self._start is None:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._start = message
        else:
            body = self._spliced.fill(message.get("body", b""))
            if self._start is not None:
                await self._send(_with_length(self._start, body))
                self._start = None
            await self._send({**message, "body": body})


class _FixedTexts:
    """Replaces the texts of the SDK's answers to malformed envelopes, which quote the input."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._start: Message | None = None
        self._body = b""

    async def send(self, message: Message) -> None:
        """Pass a message on; a refused one is held back until it is whole."""
        if message["type"] == "http.response.start" and message["status"] == 400:
            self._start = message
            return
        if self._start is None:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if message.get("more_body", False):
            return
        start, self._start = self._start, None
        body = _with_fixed_text(self._body)
        await self._send(_with_length(start, body))
        await self._send({"type": "http.response.body", "body": body})


def _without_dead_session(send: Send) -> Send:
    async def cut(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] >= 400:
            kept = [item for item in message["headers"] if item[0].lower() != b"mcp-session-id"]
            message = {**message, "headers": kept}
        await send(message)

    return cut


def _with_length(start: Message, body: bytes) -> Message:
    headers = [item for item in start["headers"] if item[0].lower() != b"content-length"]
    headers.append((b"content-length", str(len(body)).encode()))
    return {**start, "headers": headers}


def _with_fixed_text(body: bytes) -> bytes:
    try:
        answer: Any = json.loads(body)
        code = answer["error"]["code"]
    except (ValueError, LookupError, TypeError):
        return body  # one of the SDK's own fixed texts
    if code != INVALID_PARAMS:
        return body
    answer["error"] = {"code": code, "message": _NO_MESSAGE}
    return json.dumps(answer, separators=(",", ":")).encode()


def _request_id(message: object) -> RequestId | None:
    """Return the id of a request; None for everything else, which the SDK judges.

    Raises:
        _NoIdError: It has an id that no request can have.
    """
    if not isinstance(message, dict) or not {"id", "method"} <= message.keys():
        return None
    request_id = readable_id(message["id"])
    if request_id is None:
        raise _NoIdError
    return request_id


def _is_small(headers: Headers) -> bool:
    declared = headers.get("content-length", "")
    return declared.isdecimal() and int(declared[:20]) <= LARGE_BYTES


class _NoIdError(Exception):
    """A request's id is none."""
