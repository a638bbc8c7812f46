"""More sessions than may be open: those that nobody uses make room, and no others."""

from __future__ import annotations

import asyncio
import json

from tests.support.express import Service
from tests.support.mcp_servers import (
    HttpServer,
    RawHttp,
    http_server,
    initialize,
    relayed_http,
    request,
)

IMPATIENT = """
import sys
from agent_sandbox.mcp_server import sessions
sessions.UNUSED_S = 0.0
from agent_sandbox.mcp_server.app import McpConfig, run_http
run_http(McpConfig(port=0, max_sessions=3, max_sessions_each=2))
"""


async def opened(raw: RawHttp) -> dict[str, str]:
    """Open one more session."""
    raw.session = {}
    await raw.initialize()
    return raw.session


async def lives(raw: RawHttp, session: dict[str, str]) -> bool:
    raw.session = session
    return (await raw.post(request(1, "ping"))).status_code == 200


async def test_the_session_that_was_idle_for_longest_makes_room_unless_it_owns_a_sandbox() -> None:
    with http_server(program=("-c", IMPATIENT)) as server:
        async with RawHttp.open(server.url) as raw:
            owner = await opened(raw)
            assert "result" in await raw.call(1, "write_file", path="/tmp/x", content="kept")
            looker = await opened(raw)
            assert "result" in await raw.call(1, "list_sandboxes")
            idle = await opened(raw)
            assert await lives(raw, looker)  # so the other one was idle for longer
            last = await opened(raw)
            for session, alive in ((owner, True), (looker, True), (idle, False), (last, True)):
                assert await lives(raw, session) is alive
            raw.session = owner
            read = await raw.call(2, "read_file", path="/tmp/x")
            assert read["result"]["structuredContent"]["content"] == "kept"


async def test_where_every_session_owns_a_sandbox_or_is_open_there_is_no_room() -> None:
    with http_server(program=("-c", IMPATIENT)) as server:
        async with RawHttp.open(server.url) as raw:
            for _ in range(2):
                await opened(raw)
                assert "result" in await raw.call(1, "create_sandbox")
            listening = await opened(raw)
            headers = {**listening, "accept": "text/event-stream"}
            async with raw.http.stream("GET", raw.url, headers=headers) as stream:
                assert stream.status_code == 200
                raw.session = {}
                refused = await raw.post(initialize(0))
                assert (refused.status_code, "mcp-session-id" in refused.headers) == (503, False)
            for _ in range(500):  # until the server has noticed that the stream is closed
                if (await raw.post(initialize(0))).status_code == 200:
                    break
            else:
                raise AssertionError("there is still no room")


async def test_a_client_that_never_ends_its_sessions_goes_on() -> None:
    with http_server(program=("-c", IMPATIENT)) as server:
        async with RawHttp.open(server.url) as raw:
            for _ in range(40):
                await opened(raw)


async def test_a_session_that_was_used_a_moment_ago_makes_no_room() -> None:
    patient = IMPATIENT.replace("sessions.UNUSED_S = 0.0", "")
    with http_server(program=("-c", patient)) as server:
        async with RawHttp.open(server.url) as raw:
            sessions = [await opened(raw) for _ in range(3)]
            raw.session = {}
            assert (await raw.post(initialize(0))).status_code == 503
            for session in sessions:
                assert await lives(raw, session)


async def test_what_a_client_says_of_itself_is_bounded(shared_http: HttpServer) -> None:
    async with RawHttp.open(shared_http.url) as raw:
        opening = json.loads(initialize(1))
        for size, status in ((65_000, 200), (66_000, 413)):
            opening["params"]["clientInfo"]["title"] = "x" * size
            answer = await raw.post(json.dumps(opening).encode())
            assert (answer.status_code, "mcp-session-id" in answer.headers) == (
                status,
                status == 200,
            )


async def test_a_cancellation_reaches_no_other_session(express: Service) -> None:
    async with (
        relayed_http(express.url) as (server, relay),
        RawHttp.open(server.url) as one,
        RawHttp.open(server.url) as other,
    ):
        await one.initialize()
        await other.initialize()
        relay.hold(b"POST /files")
        call = asyncio.create_task(one.call(7, "write_file", path="/tmp/x", content="new"))
        await relay.wait_held()
        for request_id in (7, "7"):
            told = {"requestId": request_id, "reason": "not mine"}
            message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": told}
            assert (await other.post(json.dumps(message).encode())).status_code == 202
        assert (await other.post(request(7, "ping"))).status_code == 200
        assert not relay.dropped.is_set()
        relay.release()
        assert (await call)["result"]["structuredContent"]["bytes_written"] == 3
