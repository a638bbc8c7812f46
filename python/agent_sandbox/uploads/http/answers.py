"""How the transfer endpoints answer: JSON, never stored, and heard even by a client that sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable
from typing import Any

from starlette.types import Receive, Scope, Send

from agent_sandbox.errors import (
    AgentSandboxError,
    SizeLimitError,
    UploadMethodError,
    UploadSecretMissingError,
)
from agent_sandbox.http1.head import Headers, values
from agent_sandbox.http1.protocol import LINGER_MAX_BYTES, LINGER_S, STRICT
from agent_sandbox.uploads.guidance import NEXT_STEP

NO_STORE = (b"cache-control", b"no-store")
_PLAIN: Headers = [
    NO_STORE,
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


async def answer(
    send: Send, status: int, body: bytes, content_type: str, headers: Iterable[tuple[bytes, bytes]]
) -> None:
    """Send a whole answer that no cache keeps."""
    await send(_start(status, body, content_type, headers))
    await send({"type": "http.response.body", "body": body})


async def answer_json(
    send: Send, status: int, payload: dict[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a JSON object that no cache keeps."""
    await answer(send, status, json.dumps(payload).encode(), "application/json", headers)


async def refuse(
    scope: Scope,
    receive: Receive,
    send: Send,
    error: AgentSandboxError,
    *,
    state: str | None = None,
    allow: str = "",
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> None:
    """Send the fixed text of an error and close the connection.

    What the client still sends is read and dropped for a bounded while, because a close with
    unread input becomes a reset, which can destroy the answer. Our own protocol does that itself;
    under another server it is done here.

    Args:
        scope: Of the refused request.
        receive: Of the refused request.
        send: Of the refused request.
        error: Its code, text and status are sent, nothing else of it but `state` and `limit`.
        state: The session's state, where the caller has proved that it may know it.
        allow: The methods to name where the method was wrong.
        headers: More header lines.
    """
    payload: dict[str, Any] = {
        "error": error.text,
        "error_category": error.category,
        "code": error.code,
    }
    state = getattr(error, "state", None) or state
    if state is not None:
        payload["state"] = state
    if isinstance(error, SizeLimitError):
        payload["limit"] = error.limit
    if error.code in NEXT_STEP:
        payload["next_step"] = NEXT_STEP[error.code]
    lines: Headers = [
        (b"agent-sandbox-error", error.code.encode()),
        (b"connection", b"close"),
        *headers,
    ]
    if isinstance(error, UploadSecretMissingError):
        lines.append((b"www-authenticate", b"AgentSandbox-Transfer"))
    if isinstance(error, UploadMethodError):
        lines.append((b"allow", allow.encode()))
    if error.http_status == 503:
        lines.append((b"retry-after", b"1"))
    body = json.dumps(payload).encode()
    await send(_start(error.http_status, body, "application/json", lines))
    if STRICT in (scope.get("extensions") or {}) or not _has_body(scope):
        await send({"type": "http.response.body", "body": body})
        return
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S):
            await _drop_body(receive)
    await send({"type": "http.response.body", "body": b""})


def _start(
    status: int, body: bytes, content_type: str, headers: Iterable[tuple[bytes, bytes]]
) -> dict[str, Any]:
    lines = [*_PLAIN, *headers]
    if status != 204:  # which may have neither (RFC 9110 8.6)
        lines.append((b"content-type", content_type.encode()))
        lines.append((b"content-length", str(len(body)).encode()))
    return {"type": "http.response.start", "status": status, "headers": lines}


def _has_body(scope: Scope) -> bool:
    headers: Headers = scope["headers"]
    lengths = values(headers, b"content-length")
    return lengths not in ([], [b"0"]) or bool(values(headers, b"transfer-encoding"))


async def _drop_body(receive: Receive) -> None:
    dropped = 0
    while dropped < LINGER_MAX_BYTES:
        message = await receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            return
        dropped += len(message.get("body", b""))
