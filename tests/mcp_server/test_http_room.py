"""Large requests: how many are in memory at once, and what becomes of the others."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.types import Message, Receive, Scope, Send

from agent_sandbox.mcp_server.http_guard import LARGE_BYTES, HttpGuard
from agent_sandbox.mcp_server.http_room import Room
from agent_sandbox.mcp_server.principals import Principal

PING = b'{"jsonrpc":"2.0","id":%d,"method":"ping"}'
LARGE = PING + b" " * LARGE_BYTES


class Door:
    """A guard before an application that holds every request until it is let go."""

    def __init__(self, room: Room) -> None:
        async def may_open(_principal: Principal) -> bool:
            return True

        self.guard = HttpGuard(self.app, may_open=may_open, body_deadline_s=30, room=room)
        self.read: list[int] = []
        self.inside: list[int] = []
        self.came_in = anyio.Event()
        self.let_go = anyio.Event()
        self.status: dict[int, int] = {}

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.inside.append(scope["number"])
        self.came_in.set()
        await self.let_go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def post(self, number: int, body: bytes, caller: str = "", length: bool = True) -> None:
        """Send one request, and keep its status."""

        async def receive() -> Message:
            self.read.append(number)
            return {"type": "http.request", "body": body % number, "more_body": False}

        async def send(message: Message) -> None:
            self.status.setdefault(number, message.get("status", 0))

        headers = [(b"mcp-session-id", b"0" * 32)]  # what opens a session may not be large
        if length:
            headers.append((b"content-length", b"%d" % len(body % number)))
        scope: dict[str, Any] = {"type": "http", "method": "POST", "headers": headers}
        if caller:
            scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=caller, scopes=[]))
        await self.guard({**scope, "number": number}, receive, send)


async def test_a_large_request_waits_unread_for_its_turn_and_a_small_one_does_not() -> None:
    door = Door(Room(30, at_once=2))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in (1, 2, 3, 4):
                tasks.start_soon(door.post, number, LARGE)
            tasks.start_soon(door.post, 5, LARGE, "", False)  # who tells no length may send much
            tasks.start_soon(door.post, 6, PING)
            await anyio.wait_all_tasks_blocked()
            assert sorted(door.read) == [1, 2, 6]
            door.let_go.set()
    assert door.status == dict.fromkeys(range(1, 7), 200)
    assert door.read[3:] == [3, 4, 5]  # as they came


async def test_one_caller_leaves_room_for_others_and_is_then_forgotten() -> None:
    room = Room(30, at_once=3, at_once_each=2)
    door = Door(room)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for number in (1, 2, 3):
                tasks.start_soon(door.post, number, LARGE, "greedy")
            tasks.start_soon(door.post, 4, LARGE, "other")
            await anyio.wait_all_tasks_blocked()
            assert sorted(door.inside) == [1, 2, 4]
            door.let_go.set()
    assert door.status == dict.fromkeys(range(1, 5), 200)
    assert (room._of, room._users) == ({}, {})


@pytest.mark.parametrize("caller", ["", "greedy"])
async def test_who_waits_too_long_is_told_to_come_again(caller: str) -> None:
    door = Door(Room(0.05, at_once=1, at_once_each=1))
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(door.post, 1, LARGE, caller)
            await door.came_in.wait()
            await door.post(2, LARGE, caller)
            assert door.status == {2: 503}
            door.let_go.set()
    assert door.status == {2: 503, 1: 200}
    await door.post(3, LARGE, caller)  # its place is free again
    assert door.status[3] == 200
