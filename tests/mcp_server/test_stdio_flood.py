"""More requests on a pipe than are served at once."""

from __future__ import annotations

import base64
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from tests.mcp_server.test_stdio_wire import PING, Pipe, pipe
from tests.support.express import Service
from tests.support.mcp_servers import ERAS, modern_call, request, tool_call
from tests.support.relay import Relay, relay_to

FEW = """
import sys
from agent_sandbox.mcp_server import stdio
stdio.MAX_IN_FLIGHT, stdio.MAX_IN_FLIGHT_BYTES, stdio.ROOM_FOR_PINGS = 3, 3_000_000, 2
from agent_sandbox.cli import main
main()
"""
CALLS: dict[str, Callable[..., bytes]] = {ERAS[0]: tool_call, ERAS[1]: modern_call}


@asynccontextmanager
async def busy(express: Service, era: str) -> AsyncIterator[tuple[Pipe, Relay]]:
    """A server that serves three requests at once, and has three that wait for the sandbox."""
    call = CALLS[era]
    async with relay_to(express.url) as relay:
        env = {"AGENT_SANDBOX_API_URL": relay.url, "AGENT_SANDBOX_URL": relay.url}
        command = [sys.executable, "-c", FEW, "mcp"]
        async with pipe(hello=era == ERAS[0], env=env, command=command) as it:
            await it.ask(call("make", "write_file", path="/tmp/x", content="x"))
            relay.hold(b"GET /files")
            await it.send(*(call(n, "read_file", path="/tmp/x") for n in range(3)))
            await relay.wait_held()
            yield it, relay


@pytest.mark.parametrize("era", ERAS)
async def test_one_too_many_is_refused_by_its_id_and_the_others_are_answered(
    express: Service, era: str
) -> None:
    async with busy(express, era) as (it, relay):
        refused = await it.ask(CALLS[era](3, "list_sandboxes"))
        assert (refused["id"], refused["error"]["code"]) == (3, -32600)
        assert refused["error"]["message"].startswith("Too many requests are being served")
        relay.release()
        answers = [await it.receive() for _ in range(3)]
        assert {answer["id"] for answer in answers} == {0, 1, 2}
        assert all("result" in answer for answer in answers)
        again = await it.ask(CALLS[era](3, "list_sandboxes"))
        assert again["result"]["structuredContent"]["success"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_cancellation_gets_through_and_makes_room(express: Service, era: str) -> None:
    async with busy(express, era) as (it, relay):
        cancel = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}'
        await it.send(cancel)
        for number in range(10, 60):  # there is room once the handler has ended
            answer = await it.ask(CALLS[era](number, "list_sandboxes"))
            if "result" in answer:
                break
        assert answer["result"]["structuredContent"]["success"]
        relay.release()
        assert {(await it.receive())["id"] for _ in range(2)} == {0, 2}


async def test_a_ping_gets_through(express: Service) -> None:
    async with busy(express, ERAS[0]) as (it, relay):
        for number in (5, 6, 7):  # answered, they take no room
            assert await it.ask(PING % str(number).encode()) == {
                "jsonrpc": "2.0",
                "id": number,
                "result": {},
            }
        relay.release()
        assert {(await it.receive())["id"] for _ in range(3)} == {0, 1, 2}


@pytest.mark.parametrize("era", ERAS)
async def test_the_lines_of_all_have_a_bound_and_one_alone_is_always_served(
    express: Service, era: str
) -> None:
    call = CALLS[era]
    content = base64.b64encode(bytes(1_000_000)).decode()
    async with relay_to(express.url) as relay:
        env = {"AGENT_SANDBOX_API_URL": relay.url, "AGENT_SANDBOX_URL": relay.url}
        command = [sys.executable, "-c", FEW, "mcp"]
        async with pipe(hello=era == ERAS[0], env=env, command=command) as it:
            relay.hold(b"POST /files")
            upload = [call(n, "upload_file", path="/tmp/x", content_base64=content) for n in (1, 2)]
            await it.send(*upload)
            await relay.wait_held()
            refused = await it.ask(call(3, "upload_file", path="/tmp/x", content_base64=content))
            assert (refused["id"], refused["error"]["code"]) == (3, -32600)
            relay.release()
            assert {(await it.receive())["id"] for _ in range(2)} == {1, 2}
            alone = request(4, "canary", x="y" * 4_000_000)
            assert (await it.ask(alone))["error"]["code"] in (-32601, -32602)
