"""The tools that make, show, prolong and end sandboxes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agent_sandbox.errors import ArgumentError, SandboxNotFoundError, UnknownToolError
from agent_sandbox.limits import MAX_TTL_S

if TYPE_CHECKING:
    from tests.mcp_server.conftest import Caller, Connect

MISSING = "i" + "0" * 32


async def fields(call: Caller, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await call.client.call_tool(tool, arguments)
    assert not result.is_error, result
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def test_a_sandbox_is_made_shown_prolonged_and_ended(call: Caller) -> None:
    made = await fields(call, "create_sandbox", ttl_seconds=60)
    sandbox_id = made["sandbox_id"]
    assert made["ttl_seconds"] == 60
    assert made["is_default"] is False  # the session has one already, or has none at all
    shown = await fields(call, "get_sandbox", sandbox_id=sandbox_id)
    assert shown["state"] == "running"
    listed = await fields(call, "list_sandboxes")
    shown.pop("success")
    assert shown in listed["sandboxes"]
    now = datetime.now(UTC)
    await fields(call, "set_sandbox_ttl", sandbox_id=sandbox_id, ttl_seconds=1000)
    end_at = (await fields(call, "get_sandbox", sandbox_id=sandbox_id))["end_at"]
    left = datetime.fromisoformat(end_at) - now
    assert timedelta(seconds=999) <= left <= timedelta(seconds=1010)
    ended = await fields(call, "kill_sandbox", sandbox_id=sandbox_id)
    assert ended == {"success": True, "sandbox_id": sandbox_id}
    for tool in ("get_sandbox", "kill_sandbox"):
        again = await call.client.call_tool(tool, {"sandbox_id": sandbox_id})
        assert again.structured_content == {
            "error": SandboxNotFoundError.text,
            "error_category": "sandbox_not_found",
        }


@pytest.mark.parametrize("ttl", [0, -1, MAX_TTL_S + 1, True, 60.0, "60", None, 2**64])
@pytest.mark.parametrize("tool", ["create_sandbox", "set_sandbox_ttl"])
async def test_a_time_out_of_range_is_refused_and_never_replaced(
    call: Caller, tool: str, ttl: object
) -> None:
    arguments: dict[str, object] = {"ttl_seconds": ttl}
    if tool == "set_sandbox_ttl":
        arguments["sandbox_id"] = call.sandbox_id
    result = await call.client.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content == {
        "error": ArgumentError.text,
        "error_category": "invalid_input",
    }


@pytest.mark.parametrize("sandbox_id", [MISSING, "no such", "../x", "x" * 256, "\u00e9"])
@pytest.mark.parametrize("tool", ["get_sandbox", "kill_sandbox", "set_sandbox_ttl"])
async def test_an_unknown_sandbox_is_not_found(call: Caller, tool: str, sandbox_id: str) -> None:
    arguments: dict[str, object] = {"sandbox_id": sandbox_id}
    if tool == "set_sandbox_ttl":
        arguments["ttl_seconds"] = 60
    result = await call.client.call_tool(tool, arguments)
    assert result.is_error
    assert isinstance(result.structured_content, dict)
    assert result.structured_content["error_category"] == "sandbox_not_found"


@pytest.mark.parametrize("tool", ["nothing", "upload-file", "", "x" * 200])
async def test_an_unknown_tool_is_a_failure_with_a_fixed_text(call: Caller, tool: str) -> None:
    result = await call.client.call_tool(tool, {})
    assert result.is_error
    assert result.structured_content == {
        "error": UnknownToolError.text,
        "error_category": "invalid_input",
    }


async def test_without_a_name_a_session_keeps_one_sandbox_and_a_lone_call_makes_its_own(
    connect: Connect, transport: str, era: str
) -> None:
    async with connect() as client:
        ids = []
        for _ in range(2):
            result = await client.call_tool("write_file", {"path": "/tmp/x", "content": "x"})
            assert result.structured_content is not None
            ids.append(result.structured_content["sandbox_id"])
        if transport == "http" and era == "2026-07-28":
            assert ids[0] != ids[1]
            assert result.structured_content["sandbox_created"] is True
            failed = await client.call_tool("read_file", {"path": "/nothing"})
            assert isinstance(failed.structured_content, dict)
            ids.append(failed.structured_content["sandbox_id"])  # in an error, too
            assert len(set(ids)) == 3
            for sandbox_id in ids:
                shown = await client.call_tool("get_sandbox", {"sandbox_id": sandbox_id})
                assert isinstance(shown.structured_content, dict)
                assert shown.structured_content["is_owned"] is False
                await client.call_tool("kill_sandbox", {"sandbox_id": sandbox_id})
        else:
            assert ids[0] == ids[1]
            assert "sandbox_created" not in result.structured_content


async def test_a_default_that_is_gone_is_replaced_and_the_next_success_says_so(
    connect: Connect, transport: str, era: str
) -> None:
    if transport == "http" and era == "2026-07-28":
        return  # there is no default
    async with connect() as client:

        async def fields_of(tool: str, **arguments: Any) -> dict[str, Any]:
            result = await client.call_tool(tool, arguments)
            assert isinstance(result.structured_content, dict)
            return result.structured_content

        first = await fields_of("create_sandbox")
        assert first["is_default"] is True
        await fields_of("kill_sandbox", sandbox_id=first["sandbox_id"])
        failed = await fields_of("read_file", path="/tmp/x")
        assert failed["error_category"] == "not_found"
        assert failed["sandbox_id"] != first["sandbox_id"]
        told = await fields_of("write_file", path="/tmp/x", content="x")
        assert told["sandbox_id"] == failed["sandbox_id"]
        assert told["sandbox_created"] is True
        quiet = await fields_of("write_file", path="/tmp/x", content="x")
        assert "sandbox_created" not in quiet
