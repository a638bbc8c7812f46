"""On 2026-07-28 over HTTP there is no session: a sandbox is a handle that is passed on."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from mcp import Client
from mcp_types import TextContent
from tests.support.mcp_servers import ERAS, HttpServer, connected, stdio_command

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("create_sandbox", {}),
    ("write_file", {"path": "/tmp/x", "content": "x"}),
    ("read_file", {"path": "/tmp/nothing"}),
    ("list_files", {"path": "/nothing"}),
]
"""Some of them fail: the sandbox is there all the same."""


async def both(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the fields of a result, which its text block repeats."""
    result = await client.call_tool(tool, arguments)
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert result.structured_content == json.loads(block.text)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


@pytest.mark.parametrize(("tool", "arguments"), CALLS)
async def test_a_call_without_a_sandbox_makes_one_and_says_to_pass_it_on(
    shared_http: HttpServer, tool: str, arguments: dict[str, Any]
) -> None:
    async with connected(shared_http.url, ERAS[1]) as client:
        made = await both(client, tool, **arguments)
        assert "Pass this sandbox_id in later calls" in made["next_step"]
        sandbox_id = made["sandbox_id"]
        # One letter, then Base32: at least 128 random bits.
        assert len(base64.b32decode(sandbox_id[1:].upper())) >= 16
    async with connected(shared_http.url, ERAS[1]) as client:  # another connection
        listed = (await both(client, "list_sandboxes"))["sandboxes"]
        assert sandbox_id in {info["sandbox_id"] for info in listed}
        again = await both(client, "list_files", path="/", sandbox_id=sandbox_id)
        assert again["sandbox_id"] == sandbox_id
        assert "next_step" not in again
        assert (await both(client, "kill_sandbox", sandbox_id=sandbox_id))["success"]
        gone = await both(client, "get_sandbox", sandbox_id=sandbox_id)
        assert gone["error_category"] == "sandbox_not_found"


async def test_two_calls_without_a_sandbox_make_two(shared_http: HttpServer) -> None:
    async with connected(shared_http.url, ERAS[1]) as client:
        made = [
            (await both(client, "write_file", path="/tmp/x", content="x"))["sandbox_id"]
            for _ in range(2)
        ]
        assert len(set(made)) == 2
        for sandbox_id in made:
            await both(client, "kill_sandbox", sandbox_id=sandbox_id)


@pytest.mark.parametrize("era", ERAS)
async def test_where_a_scope_owns_the_sandbox_nobody_is_told_to_pass_it_on(era: str) -> None:
    async with connected(stdio_command(), era) as client:
        for tool, arguments in CALLS:
            assert "next_step" not in await both(client, tool, **arguments)
