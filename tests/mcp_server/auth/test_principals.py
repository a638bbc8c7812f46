"""What belongs to one caller does not exist for another: real callers, both eras, both kinds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp_types import CallToolResult
from tests.support.express import wait_until
from tests.support.guarded import Guarded
from tests.support.mcp_servers import (
    ERAS,
    RawHttp,
    connected,
    http_server,
    initialize,
    relayed_http,
    request,
)

from agent_sandbox.errors import SandboxNotFoundError, SandboxOwnedError
from agent_sandbox.mcp_server.auth.tokens import make_token
from agent_sandbox.mcp_server.principals import METADATA_KEY, Principal

UNKNOWN = "i" + "a" * 32
"""Looks like a sandbox's id, and is none."""

ARGUMENTS: dict[str, Any] = {
    "path": "/tmp/x",
    "content": "x",
    "content_base64": "AP8=",
    "command": "true",
    "ttl_seconds": 60,
    "url": "https://files.example/x",
    "filename": "x",
    "size_bytes": 1,
    "upload_id": "unknown",
}
"""What a tool needs beside the sandbox, by the name of the argument."""


TRANSFERS = {"create_download_url", "fetch_url", "place_upload"}
"""They may fail for another reason before they look for the sandbox: see below."""


def callers(guarded: Guarded) -> dict[str, str]:
    """Return the tokens of callers who are all different people."""
    issuer = guarded.issuer
    return {
        "one": guarded.one.token,
        "two": guarded.two.token,
        "alice": issuer.token(),
        "bob": issuer.token(sub="bob"),
        "alice by another client": issuer.token(client_id="other"),
        "a subject named like a token": issuer.token(sub=guarded.one.id, client_id=guarded.one.id),
    }


async def fields(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def made_by(client: Client) -> str:
    return str((await fields(client, "create_sandbox"))["sandbox_id"])


async def listed(client: Client) -> set[str]:
    return {info["sandbox_id"] for info in (await fields(client, "list_sandboxes"))["sandboxes"]}


@asynccontextmanager
async def everyone(guarded: Guarded, era: str) -> AsyncIterator[dict[str, Client]]:
    async with AsyncExitStack() as stack:
        yield {
            who: await stack.enter_async_context(connected(guarded.server.url, era, token=token))
            for who, token in callers(guarded).items()
        }


@pytest.mark.parametrize("era", ERAS)
async def test_each_caller_sees_their_own_sandboxes_alone(guarded: Guarded, era: str) -> None:
    lone = guarded.express.create()  # made by nobody who calls here
    async with everyone(guarded, era) as clients:
        own = {who: await made_by(client) for who, client in clients.items()}
        for who, client in clients.items():
            assert await listed(client) == {own[who]}
            described = await fields(client, "get_sandbox", sandbox_id=own[who])
            assert described["sandbox_id"] == own[who]
        for who, client in clients.items():
            assert (await fields(client, "kill_sandbox", sandbox_id=own[who]))["success"]
            assert await listed(client) == set()
    assert lone.sandbox_id in {box["sandboxID"] for box in boxes(guarded)}


def boxes(guarded: Guarded) -> Any:
    return guarded.express.http.get("/v2/sandboxes").json()


def same_but_for(answer: CallToolResult, sandbox_id: str) -> str:
    """Return a result as text, without the id that was asked for."""
    return answer.model_dump_json().replace(sandbox_id, "ID")


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("owner_era", ERAS)
async def test_every_tool_treats_a_foreign_sandbox_like_one_that_never_was(
    guarded: Guarded, era: str, owner_era: str
) -> None:
    url = guarded.server.url
    async with (
        connected(url, owner_era, token=guarded.one.token) as owner,
        connected(url, era, token=guarded.issuer.token()) as other,
    ):
        foreign = await made_by(owner)
        await fields(owner, "write_file", path="/tmp/x", content="mine", sandbox_id=foreign)
        before = guarded.express.http.get(f"/sandboxes/{foreign}").json()
        tried = 0
        for tool in (await other.list_tools()).tools:
            if "sandbox_id" not in tool.input_schema["properties"]:
                continue
            needed = tool.input_schema["required"]
            given = {name: ARGUMENTS[name] for name in needed if name != "sandbox_id"}
            answers = [
                same_but_for(
                    await other.call_tool(tool.name, {**given, "sandbox_id": sandbox_id}),
                    sandbox_id,
                )
                for sandbox_id in (foreign, UNKNOWN)
            ]
            assert answers[0] == answers[1]
            told = json.loads(answers[0])["structured_content"]
            if tool.name not in TRANSFERS:
                assert told == {
                    "error": SandboxNotFoundError.text,
                    "error_category": "sandbox_not_found",
                }
            tried += 1
        assert tried >= 8
        # Nothing was renewed, adopted, shortened or ended.
        after = guarded.express.http.get(f"/sandboxes/{foreign}").json()
        assert after["endAt"] >= before["endAt"]
        assert await listed(other) == set()
        read = await fields(owner, "read_file", path="/tmp/x", sandbox_id=foreign)
        assert read["content"] == "mine"
        await fields(owner, "kill_sandbox", sandbox_id=foreign)


@pytest.mark.parametrize("era", ERAS)
async def test_a_sandbox_that_the_service_knows_and_no_caller_made_is_nobodys(
    guarded: Guarded, era: str
) -> None:
    box = guarded.express.create()
    async with connected(guarded.server.url, era, token=guarded.one.token) as client:
        gone = await fields(client, "read_file", path="/tmp/x", sandbox_id=box.sandbox_id)
        assert gone["error_category"] == "sandbox_not_found"
    assert box.sandbox_id in {one["sandboxID"] for one in boxes(guarded)}


async def test_another_server_of_the_same_service_knows_whose_a_sandbox_is(
    guarded: Guarded,
) -> None:
    async with connected(guarded.server.url, ERAS[1], token=guarded.one.token) as client:
        made = await made_by(client)
    with http_server(env=guarded.env, arguments=guarded.arguments) as second:
        async with connected(second.url, ERAS[1], token=guarded.two.token) as stranger:
            assert made not in await listed(stranger)
            gone = await fields(stranger, "list_files", path="/", sandbox_id=made)
            assert gone["error_category"] == "sandbox_not_found"
        async with connected(second.url, ERAS[1], token=guarded.one.token) as same:
            assert made in await listed(same)
            assert (await fields(same, "list_files", path="/", sandbox_id=made))["success"]
    with http_server(env=guarded.env) as open_to_all:
        async with connected(open_to_all.url, ERAS[1]) as anonymous:
            assert made not in await listed(anonymous)
            gone = await fields(anonymous, "kill_sandbox", sandbox_id=made)
            assert gone["error_category"] == "sandbox_not_found"
    async with connected(guarded.server.url, ERAS[1], token=guarded.one.token) as client:
        assert (await fields(client, "kill_sandbox", sandbox_id=made))["success"]


async def test_the_service_learns_no_name_of_a_caller(guarded: Guarded) -> None:
    async with connected(guarded.server.url, ERAS[1], token=guarded.issuer.token()) as client:
        made = await made_by(client)
        (kept,) = (box["metadata"] for box in boxes(guarded) if box["sandboxID"] == made)
        assert kept == {METADATA_KEY: Principal("agent", guarded.issuer.url, "alice").tag}
        assert not {"alice", "agent", "127.0.0.1"} & set(json.dumps(kept).split('"'))
        await fields(client, "kill_sandbox", sandbox_id=made)


async def test_two_sessions_of_one_caller_are_told_about_each_other(guarded: Guarded) -> None:
    url, token = guarded.server.url, guarded.one.token
    async with (
        connected(url, ERAS[0], token=token) as first,
        connected(url, ERAS[0], token=token) as second,
    ):
        made = await made_by(first)
        refused = await fields(second, "list_files", path="/", sandbox_id=made)
        assert refused["error"] == SandboxOwnedError.text
        assert made in await listed(second)
    await asyncio.to_thread(
        wait_until, lambda: made not in {box["sandboxID"] for box in boxes(guarded)}
    )


async def test_new_tokens_of_the_same_person_are_the_same_caller(guarded: Guarded) -> None:
    async with connected(guarded.server.url, ERAS[1], token=guarded.issuer.token()) as client:
        made = await made_by(client)
    again = guarded.issuer.token(jti="another", scope="sandboxes:use more", exp=2**33)
    async with connected(guarded.server.url, ERAS[1], token=again) as client:
        assert await listed(client) == {made}
        assert (await fields(client, "kill_sandbox", sandbox_id=made))["success"]


@pytest.mark.parametrize("era", ERAS)
async def test_an_upload_is_placed_in_no_foreign_sandbox_and_a_foreign_upload_nowhere(
    guarded: Guarded, era: str
) -> None:
    url = guarded.server.url
    async with (
        connected(url, era, token=guarded.one.token) as one,
        connected(url, era, token=guarded.two.token) as two,
    ):
        own = await made_by(one)
        opened = await fields(two, "create_upload_url", filename="x", size_bytes=1)
        async with httpx2.AsyncClient(trust_env=False) as http:
            put = await http.put(opened["url"], headers=opened["headers"], content=b"x")
        assert put.status_code == 200
        upload_id = opened["upload_id"]
        place = {"upload_id": upload_id, "path": "/tmp/x"}
        told = [
            same_but_for(
                await two.call_tool("place_upload", {**place, "sandbox_id": sandbox_id}),
                sandbox_id,
            )
            for sandbox_id in (own, UNKNOWN)
        ]
        assert told[0] == told[1]
        assert SandboxNotFoundError.text in told[0]
        for tool, arguments in (
            ("get_upload", {}),
            ("revoke_upload", {}),
            ("place_upload", {"path": "/tmp/x", "sandbox_id": own}),
        ):
            answers = [
                same_but_for(await one.call_tool(tool, {"upload_id": asked, **arguments}), asked)
                for asked in (upload_id, upload_id[::-1])
            ]
            assert answers[0] == answers[1]
            assert '"error_category":"not_found"' in answers[0]
        placed = await fields(two, "place_upload", **place)
        assert placed["success"]
        await fields(two, "kill_sandbox", sandbox_id=placed["sandbox_id"])
        await fields(one, "kill_sandbox", sandbox_id=own)


@pytest.mark.parametrize("era", ERAS)
async def test_a_foreign_task_is_answered_like_one_that_never_was(
    guarded: Guarded, era: str
) -> None:
    url = guarded.server.url
    async with (
        connected(url, era, token=guarded.one.token) as owner,
        connected(url, era, token=guarded.issuer.token()) as other,
    ):
        begun = await fields(
            owner, "start_background_task", command="sleep 60", retain=True, retain_seconds=60
        )
        task_id, sandbox_id = begun["task_id"], begun["sandbox_id"]
        unknown = task_id.replace(sandbox_id, UNKNOWN)
        for tool in ("get_background_task", "stop_background_task"):
            answers = [
                same_but_for(await other.call_tool(tool, {"task_id": asked}), asked)
                for asked in (task_id, unknown)
            ]
            assert answers[0] == answers[1]
            assert '"error_category":"not_found"' in answers[0]
        assert (await fields(other, "list_background_tasks"))["tasks"] == []
        own = await fields(owner, "get_background_task", task_id=task_id)
        assert own["success"]
        assert "exit_code" not in own  # it was not stopped
        await fields(owner, "kill_sandbox", sandbox_id=sandbox_id)


async def test_a_session_goes_on_with_a_new_token_of_its_caller_and_with_no_other(
    guarded: Guarded,
) -> None:
    issuer = guarded.issuer
    async with RawHttp.open(guarded.server.url, issuer.token()) as raw:
        await raw.initialize()
        for token, status in (
            (issuer.token(jti="another"), 200),
            (issuer.token(sub="bob"), 404),
            (issuer.token(client_id="other"), 404),
            (guarded.one.token, 404),
        ):
            answer = await raw.post(request(1, "ping"), authorization=f"Bearer {token}")
            assert answer.status_code == status


def everything(answer: httpx2.Response) -> tuple[int, dict[str, str], bytes]:
    """Return all that an answer tells, but the time."""
    headers = {name: value for name, value in answer.headers.items() if name != "date"}
    return answer.status_code, headers, answer.content


async def test_a_foreign_session_is_answered_like_one_that_never_was(guarded: Guarded) -> None:
    url = guarded.server.url
    async with (
        RawHttp.open(url, guarded.one.token) as owner,
        RawHttp.open(url, guarded.two.token) as two,
        RawHttp.open(url, guarded.issuer.token()) as alice,
    ):
        await owner.initialize()
        for other in (two, alice):
            for method, body in (
                ("POST", request(1, "ping")),
                ("POST", b"{"),
                ("POST", b'{"jsonrpc":"2.0","method":"notifications/initialized"}'),
                ("GET", b""),
                ("DELETE", b""),
            ):
                told = []
                for session_id in (owner.session["mcp-session-id"], "0" * 32):
                    headers = {
                        **other.headers,
                        **owner.session,
                        "mcp-session-id": session_id,
                        "content-type": "application/json",
                    }
                    told.append(
                        everything(
                            await other.http.request(method, url, content=body, headers=headers)
                        )
                    )
                assert told[0] == told[1]
                # What is no JSON is refused before anybody asks for its session.
                assert told[0][0] == (400 if body == b"{" else 404)
        assert (await owner.post(request(2, "ping"))).status_code == 200


async def test_what_a_foreign_session_is_doing_is_not_told_nor_disturbed(
    guarded: Guarded,
) -> None:
    async with (
        relayed_http(guarded.express.url, arguments=guarded.arguments, quiet=False) as (
            server,
            relay,
        ),
        RawHttp.open(server.url, guarded.one.token) as owner,
        RawHttp.open(server.url, guarded.two.token) as other,
    ):
        await owner.initialize()
        relay.hold(b"POST /files")
        call = asyncio.create_task(owner.call(7, "write_file", path="/tmp/x", content="x"))
        await relay.wait_held()
        other.session = owner.session
        assert (await other.post(request(7, "ping"))).status_code == 404
        assert (await owner.post(request(7, "ping"))).status_code == 400
        relay.release()
        assert (await call)["result"]["structuredContent"]["success"]


async def test_a_foreign_sandbox_costs_the_service_the_same_requests_as_an_unknown_one(
    guarded: Guarded,
) -> None:
    async with (
        relayed_http(guarded.express.url, arguments=guarded.arguments) as (server, relay),
        connected(server.url, ERAS[1], token=guarded.one.token) as owner,
        connected(server.url, ERAS[1], token=guarded.two.token) as other,
    ):
        foreign = await made_by(owner)
        await fields(owner, "write_file", path="/tmp/x", content="x", sandbox_id=foreign)
        await fields(owner, "get_sandbox", sandbox_id=foreign)  # its renewal is over now
        calls: list[tuple[str, dict[str, Any]]] = [
            ("get_sandbox", {}),
            ("set_sandbox_ttl", {"ttl_seconds": 60}),
            ("kill_sandbox", {}),
            ("list_files", {"path": "/"}),
            ("write_file", {"path": "/tmp/x", "content": "x"}),
        ]
        for tool, more_arguments in calls:
            seen = []
            for sandbox_id in (foreign, UNKNOWN):
                relay.seen.clear()
                await fields(other, tool, sandbox_id=sandbox_id, **more_arguments)
                seen.append([line.replace(sandbox_id.encode(), b"ID") for line in relay.seen])
            assert seen[0] == seen[1] == [b"GET /sandboxes/ID HTTP/1.1"]
        await fields(owner, "kill_sandbox", sandbox_id=foreign)


async def test_the_sessions_of_one_caller_leave_room_for_those_of_others() -> None:
    one, two = make_token("one"), make_token("two")
    lines = {"AGENT_SANDBOX_TOKENS": f"{one.line}\n{two.line}"}
    with http_server({"max_sessions_each": 2}, env=lines) as server:
        async with RawHttp.open(server.url, one.token) as greedy:
            await greedy.initialize()
            first, greedy.session = greedy.session, {}
            await greedy.initialize()
            greedy.session = {}
            answer = await greedy.post(initialize(0))
            assert (answer.status_code, "mcp-session-id" in answer.headers) == (503, False)
            async with RawHttp.open(server.url, two.token) as other:
                await other.initialize()
                assert "result" in await other.call(1, "list_sandboxes")
            ended = await greedy.http.delete(server.url, headers={**greedy.headers, **first})
            assert ended.status_code == 200
            await greedy.initialize()
