"""Who owns a sandbox, and that the end of its owner is its own end."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp import Client
from tests.support.express import Box, Service, wait_until
from tests.support.mcp_servers import (
    ERAS,
    RawHttp,
    connected,
    environment,
    http_server,
    initialize,
    stdio_command,
    tool_call,
)

from agent_sandbox.errors import SandboxOwnedError

FILE_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("upload_file", {"path": "/tmp/x", "content_base64": "AP8="}),
    ("download_file", {"path": "/tmp/nothing"}),
    ("read_file", {"path": "/tmp/nothing"}),
    ("write_file", {"path": "/tmp/x", "content": "x"}),
    ("list_files", {"path": "/nothing"}),
    ("run_command", {"command": "false"}),
    ("run_command", {"command": "true", "cwd": "/nothing"}),
    ("start_background_task", {"command": "sleep 1000"}),
    ("create_download_url", {"path": "/tmp/nothing"}),
]
"""Some of them fail: adoption happens all the same."""


def elsewhere(express: Service) -> dict[str, str]:
    return {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}


def alive(express: Service) -> set[str]:
    return {box["sandboxID"] for box in express.http.get("/v2/sandboxes").json()}


async def until_gone(express: Service, *boxes: str) -> None:
    await asyncio.to_thread(wait_until, lambda: not alive(express) & set(boxes))


async def fields(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.mark.parametrize("era", ERAS)
async def test_a_stdio_process_ends_what_it_made_and_adopted_and_nothing_else(
    express: Service, era: str
) -> None:
    adopted, only_seen = express.create(), express.create()
    async with connected(stdio_command(), era, env=elsewhere(express)) as client:
        own = await fields(client, "create_sandbox")
        other = await fields(client, "create_sandbox")
        await fields(client, "download_file", path="/x", sandbox_id=adopted.sandbox_id)
        await fields(client, "get_sandbox", sandbox_id=only_seen.sandbox_id)
        await fields(client, "set_sandbox_ttl", sandbox_id=only_seen.sandbox_id, ttl_seconds=600)
        owned = {
            info["sandbox_id"]
            for info in (await fields(client, "list_sandboxes"))["sandboxes"]
            if info["is_owned"]
        }
        assert owned == {own["sandbox_id"], other["sandbox_id"], adopted.sandbox_id}
    await until_gone(express, *owned)
    assert alive(express) == {only_seen.sandbox_id}


@pytest.mark.parametrize(("tool", "arguments"), FILE_CALLS)
async def test_every_file_tool_adopts_a_named_sandbox_for_the_session_and_delete_ends_it(
    express: Service, tool: str, arguments: dict[str, Any]
) -> None:
    box = express.create()
    with http_server(env=elsewhere(express)) as server:
        async with connected(server.url, ERAS[0]) as client:
            await fields(client, tool, sandbox_id=box.sandbox_id, **arguments)
        await until_gone(express, box.sandbox_id)  # the client ends its session with a DELETE


async def test_an_adopted_sandbox_never_becomes_the_default(express: Service) -> None:
    box = express.create()
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as client:
        named = await fields(client, "list_files", path="/", sandbox_id=box.sandbox_id)
        unnamed = await fields(client, "list_files", path="/")
    assert named["sandbox_id"] == box.sandbox_id != unnamed["sandbox_id"]


async def test_two_sessions_cannot_own_one_sandbox(express: Service) -> None:
    box = express.create()
    with http_server(env=elsewhere(express)) as server:
        async with AsyncExitStack() as stack:
            one = await stack.enter_async_context(connected(server.url, ERAS[0]))
            two = await stack.enter_async_context(connected(server.url, ERAS[0]))
            lone = await stack.enter_async_context(connected(server.url, ERAS[1]))
            clients = (one, two) * 5
            results = await asyncio.gather(
                *(
                    fields(client, "list_files", path="/tmp", sandbox_id=box.sandbox_id)
                    for client in clients
                )
            )
            won = [index % 2 for index, result in enumerate(results) if "success" in result]
            assert len(won) == 5
            assert len(set(won)) == 1
            refused = {
                "error": SandboxOwnedError.text,
                "error_category": "permission_denied",
            }
            assert sum(result == refused for result in results) == 5
            # A call without a session owns nothing, and may not use what a session owns.
            use = await fields(lone, "read_file", path="/tmp/x", sandbox_id=box.sandbox_id)
            assert use == refused
            # Looking and ending stay open to everyone.
            assert (await fields(lone, "get_sandbox", sandbox_id=box.sandbox_id))["success"]
            assert (await fields(lone, "kill_sandbox", sandbox_id=box.sandbox_id))["success"]


async def test_a_sandbox_named_by_a_lone_call_is_not_adopted(express: Service) -> None:
    box = express.create()
    with http_server(env=elsewhere(express)) as server:
        async with connected(server.url, ERAS[1]) as client:
            for tool, arguments in FILE_CALLS:
                await fields(client, tool, sandbox_id=box.sandbox_id, **arguments)
        assert server.end() == ""
    assert box.sandbox_id in alive(express)


async def test_an_idle_session_ends_with_its_sandboxes(express: Service) -> None:
    with http_server({"idle_timeout_s": 0.3}, env=elsewhere(express)) as server:
        # The official client would hold a GET stream open, which suspends idle expiry.
        async with RawHttp.open(server.url) as raw:
            await raw.initialize()
            answer = await raw.call(1, "create_sandbox")
            await until_gone(express, answer["result"]["structuredContent"]["sandbox_id"])


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_stopped_ends_the_sandboxes_of_every_session(
    express: Service, how: signal.Signals
) -> None:
    with http_server(env=elsewhere(express)) as server:
        async with AsyncExitStack() as stack:
            made = []
            for _ in range(20):
                client = await stack.enter_async_context(connected(server.url, ERAS[0]))
                made.append((await fields(client, "create_sandbox"))["sandbox_id"])
            assert alive(express) == set(made)
            await asyncio.to_thread(server.end, how)
            assert alive(express) == set()


async def test_a_stdio_server_that_is_told_to_stop_ends_its_sandboxes(express: Service) -> None:
    process = await asyncio.create_subprocess_exec(
        *stdio_command(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(elsewhere(express)),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(initialize(0) + b"\n" + tool_call(1, "create_sandbox") + b"\n")
    await process.stdout.readline()
    assert b"sandbox_id" in await process.stdout.readline()
    assert len(alive(express)) == 1
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 10) == 0
    assert alive(express) == set()


async def test_a_file_over_the_limit_is_refused_and_not_cut(express: Service) -> None:
    box: Box = express.create()
    assert box.put("/tmp/large", b"x" * 1_048_577).is_success
    async with connected(stdio_command(), ERAS[1], env=elsewhere(express)) as client:
        for tool in ("download_file", "read_file"):
            failed = await fields(client, tool, path="/tmp/large", sandbox_id=box.sandbox_id)
            assert failed["error_category"] == "size_limit"
            assert "nothing was returned" in failed["error"]


async def test_a_service_that_is_down_is_a_failure_of_the_transfer() -> None:
    env = {"AGENT_SANDBOX_API_URL": "http://127.0.0.1:9"}
    async with connected(stdio_command(), ERAS[1], env=env) as client:
        failed = await fields(client, "read_file", path="/tmp/x")
        assert failed["error_category"] == "file_transfer"
