"""When a sandbox ends, and what moves that moment."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from mcp import Client
from tests.support.express import Service, wait_until
from tests.support.mcp_servers import ERAS, RawHttp, connected, relayed_http, stdio_command

FILE_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("upload_file", {"path": "/tmp/x", "content_base64": "AP8="}),
    ("download_file", {"path": "/tmp/nothing"}),
    ("read_file", {"path": "/tmp/nothing"}),
    ("write_file", {"path": "/tmp/x", "content": "x"}),
    ("list_files", {"path": "/tmp"}),
    ("run_command", {"command": "false"}),
    ("start_background_task", {"command": "sleep 1000"}),
]


def elsewhere(express: Service) -> dict[str, str]:
    return {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}


async def fields(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def left_s(client: Client, sandbox_id: str) -> float:
    end_at = (await fields(client, "get_sandbox", sandbox_id=sandbox_id))["end_at"]
    return (datetime.fromisoformat(end_at) - datetime.now(UTC)).total_seconds()


@pytest.mark.parametrize(("tool", "arguments"), FILE_CALLS)
@pytest.mark.parametrize("era", ERAS)
async def test_every_file_and_command_tool_renews_by_the_servers_time(
    express: Service, era: str, tool: str, arguments: dict[str, Any]
) -> None:
    box = express.create(timeout=100)
    async with connected(stdio_command({"ttl_seconds": 500}), era, env=elsewhere(express)) as it:
        assert await left_s(it, box.sandbox_id) <= 100
        await fields(it, tool, sandbox_id=box.sandbox_id, **arguments)
        assert 495 < await left_s(it, box.sandbox_id) <= 500


async def test_a_later_call_renews_again_though_the_sandbox_is_known(express: Service) -> None:
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as it:
        sandbox_id = (await fields(it, "write_file", path="/tmp/x", content="x"))["sandbox_id"]
        await fields(it, "set_sandbox_ttl", sandbox_id=sandbox_id, ttl_seconds=900)
        # Shortened behind the server's back: the next call brings it to the time that was set.
        express.http.post(f"/sandboxes/{sandbox_id}/timeout", json={"timeout": 50})
        assert await left_s(it, sandbox_id) <= 50
        await fields(it, "read_file", path="/tmp/x")
        assert 895 < await left_s(it, sandbox_id) <= 900


async def test_a_file_tool_never_shortens(express: Service) -> None:
    box = express.create(timeout=5000)
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as it:
        await fields(it, "read_file", path="/tmp/x", sandbox_id=box.sandbox_id)
        assert await left_s(it, box.sandbox_id) > 4990


async def test_looking_renews_nothing(express: Service) -> None:
    box = express.create(timeout=100)
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as it:
        await fields(it, "list_sandboxes")
        await fields(it, "get_sandbox", sandbox_id=box.sandbox_id)
        await fields(it, "list_background_tasks")
        assert await left_s(it, box.sandbox_id) <= 100


async def test_a_shorter_time_stays_shorter_until_the_next_file_call(express: Service) -> None:
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as it:
        sandbox_id = (await fields(it, "write_file", path="/tmp/x", content="x"))["sandbox_id"]
        await fields(it, "set_sandbox_ttl", sandbox_id=sandbox_id, ttl_seconds=20)
        assert await left_s(it, sandbox_id) <= 20
        await fields(it, "read_file", path="/tmp/x")
        assert await left_s(it, sandbox_id) <= 20  # later calls renew by what was set


async def test_a_sandbox_that_outlives_its_time_is_gone_and_a_named_one_not_replaced(
    express: Service,
) -> None:
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as it:
        first = (await fields(it, "write_file", path="/tmp/x", content="x"))["sandbox_id"]
        express.http.delete(f"/sandboxes/{first}")
        named = await fields(it, "read_file", path="/tmp/x", sandbox_id=first)
        assert named["error_category"] == "sandbox_not_found"
        again = await fields(it, "write_file", path="/tmp/x", content="x")
        assert again["sandbox_id"] != first
        assert again["sandbox_created"] is True


async def test_a_default_that_vanishes_under_many_calls_is_replaced_once(express: Service) -> None:
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as it:
        first = (await fields(it, "write_file", path="/tmp/x", content="x"))["sandbox_id"]
        express.http.delete(f"/sandboxes/{first}")
        results = await asyncio.gather(
            *(fields(it, "write_file", path=f"/tmp/{n}", content="x") for n in range(20))
        )
        assert len({result["sandbox_id"] for result in results}) == 1
        assert sum("sandbox_created" in result for result in results) == 1


async def test_a_sandbox_that_ends_in_the_middle_of_an_upload_gives_exactly_one_result(
    express: Service,
) -> None:
    async with (
        relayed_http(express.url) as (server, relay),
        RawHttp.open(server.url) as raw,
    ):
        await raw.initialize()
        box = express.create()
        relay.hold(b"POST /files")
        arguments = {"path": "/tmp/x", "content_base64": "AP8="}
        call = asyncio.create_task(
            raw.call(1, "upload_file", sandbox_id=box.sandbox_id, **arguments)
        )
        await relay.wait_held()
        box.kill()
        relay.release()
        answer = (await call)["result"]["structuredContent"]
        assert answer["error_category"] == "sandbox_not_found"
        again = await raw.call(2, "upload_file", **arguments)
        assert again["result"]["structuredContent"]["success"] is True


async def test_a_sandbox_lives_while_bytes_flow(express: Service) -> None:
    async with (
        relayed_http(express.url, {"ttl_seconds": 1}) as (server, relay),
        RawHttp.open(server.url) as raw,
    ):
        await raw.initialize()
        relay.hold(b"POST /files")
        call = asyncio.create_task(raw.call(1, "write_file", path="/tmp/x", content="x"))
        await relay.wait_held()

        def lived_on() -> bool:  # renewed every third of a second, for more than two lives
            return sum(b"/connect " in line for line in relay.seen) > 7

        await asyncio.to_thread(wait_until, lived_on)
        relay.release()
        assert (await call)["result"]["structuredContent"]["success"] is True
