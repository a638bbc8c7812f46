"""The guard before the SDK: what it keeps, and what becomes of a body that is too large."""

from __future__ import annotations

import json
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from agent_sandbox.mcp_server.http_guard import HttpGuard
from agent_sandbox.mcp_server.principals import Principal

LIMIT = 100


async def served(
    chunks: list[bytes], *headers: tuple[bytes, bytes]
) -> tuple[int, list[bytes], HttpGuard]:
    """Post a body in chunks; return the status, what was never read, and the guard."""
    left = list(chunks)
    sent: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def receive() -> Message:
        chunk = left.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    async def may_open(_principal: Principal) -> bool:
        return True

    guard = HttpGuard(app, may_open=may_open, body_deadline_s=30, max_body_bytes=LIMIT)
    scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": list(headers)}
    await guard(scope, receive, send)
    return sent[0]["status"], left, guard


async def test_a_call_that_has_ended_is_remembered_nowhere() -> None:
    call = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode()
    status, _, guard = await served([call], (b"mcp-session-id", b"one"))
    assert status == 200
    assert guard._in_flight == {}


@pytest.mark.parametrize("chunk", [b"x" * (LIMIT + 1), b"x" * LIMIT])
async def test_a_body_that_is_too_large_is_read_to_its_end_before_its_answer(chunk: bytes) -> None:
    # Answered earlier, the answer would be lost in a reset of the connection.
    status, left, _ = await served([chunk, b"x", b"x", b"x"])
    assert (status, left) == (413, [])


async def test_a_body_that_is_declared_too_large_is_refused_for_that() -> None:
    status, _, _ = await served([b"x"], (b"content-length", b"%d" % (LIMIT + 1)))
    assert status == 413
