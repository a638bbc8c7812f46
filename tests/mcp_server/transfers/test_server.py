"""What the server does about transfers: whose they are, what they are worth, how they end."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from tests.mcp_server.transfers.test_journey import fields
from tests.support.express import Service
from tests.support.mcp_servers import (
    ERAS,
    WAIT_S,
    RawHttp,
    connected,
    environment,
    http_server,
    initialize,
    relayed_http,
    stdio_command,
    tool_call,
)

from agent_sandbox import SandboxClient
from agent_sandbox.mcp_server.auth.tokens import NewToken, make_token


def found_in(folder: Path) -> list[Path]:
    """Return what is in a folder."""
    return list(folder.iterdir())


async def put(given: dict[str, Any], body: bytes, **headers: str) -> httpx2.Response:
    """Send the file of a session."""
    async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
        return await http.put(given["url"], content=body, headers={**given["headers"], **headers})


async def test_an_answer_that_holds_a_secret_is_kept_by_no_cache(tmp_path: Path) -> None:
    with http_server() as server:
        async with RawHttp.open(server.url) as raw:
            await raw.initialize()
            answer = await raw.post(tool_call(1, "create_upload_url", filename="a", size_bytes=1))
            assert answer.headers["cache-control"] == "no-store"
            assert "Authorization" in answer.text


async def test_the_guide_and_the_page_are_served_beside_mcp() -> None:
    with http_server() as server:
        base = server.url.removesuffix("/mcp")
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            guide = await http.get(f"{base}/llms.txt")
            assert guide.status_code == 200
            assert base in guide.text
            page = await http.get(f"{base}/uploads/{'0' * 32}")
            assert page.headers["content-type"].startswith("text/html")
            assert (await http.put(f"{base}/uploads/{'0' * 32}", content=b"")).status_code == 401
            assert (await http.get(f"{base}/downloads/{'0' * 32}")).status_code == 401
            for path in ("/uploads", "/downloads"):
                assert (await http.put(base + path, content=b"")).status_code == 404


async def test_a_public_url_is_what_clients_are_told(tmp_path: Path) -> None:
    env = environment({"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path)})
    command = [*stdio_command(), "--upload-url", "https://files.example.com/"]
    async with connected(command, ERAS[1], env=env) as client:
        given = await fields(client, "create_upload_url", filename="a", size_bytes=1)
        assert given["url"] == f"https://files.example.com/uploads/{given['upload_id']}"
        assert (await fields(client, "check_transfer"))["host"] == "files.example.com"


async def test_settings_reach_the_service(tmp_path: Path) -> None:
    more = ["--uploads-dir", str(tmp_path / "own"), "--upload-max-bytes", "10"]
    command = [*stdio_command(), *more, "--upload-extension", ".CSV"]
    async with connected(command, ERAS[1]) as client:
        big = await fields(client, "create_upload_url", filename="a.csv", size_bytes=11)
        assert big["error_category"] == "size_limit"
        other = await fields(client, "create_upload_url", filename="a.exe", size_bytes=1)
        assert other["error_category"] == "invalid_input"
        assert "url" in await fields(client, "create_upload_url", filename="a.csv", size_bytes=10)
    assert stat.S_IMODE((tmp_path / "own").stat().st_mode) == 0o700
    assert {path.name for path in (tmp_path / "own").iterdir()} >= {"server.key", "blobs"}


async def test_under_stdio_nothing_is_opened_before_the_first_need_or_left_after_the_end(
    tmp_path: Path,
) -> None:
    env = {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path / "uploads")}
    async with connected(stdio_command(), ERAS[0], env=env) as client:
        await client.call_tool("list_sandboxes", {})
        assert not (tmp_path / "uploads").exists()
        given = await fields(client, "create_upload_url", filename="a", size_bytes=5)
        assert (await put(given, b"hello")).status_code == 200
        (own,) = (tmp_path / "uploads").iterdir()
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert list((tmp_path / "uploads").iterdir()) == []
    with pytest.raises(httpx2.ConnectError):
        await put(given, b"hello")


async def test_a_killed_process_is_swept_by_the_next_one(tmp_path: Path) -> None:
    env = {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(
        *stdio_command(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(env),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(initialize(0) + b"\n")
    await asyncio.wait_for(process.stdout.readline(), 30)
    process.stdin.write(tool_call(1, "create_upload_url", filename="a", size_bytes=5) + b"\n")
    await asyncio.wait_for(process.stdout.readline(), 30)
    (left,) = found_in(tmp_path)
    process.kill()
    await process.wait()
    assert left.exists()
    async with connected(stdio_command(), ERAS[0], env=env) as client:
        await fields(client, "create_upload_url", filename="a", size_bytes=5)
        assert not left.exists()
        async with connected(stdio_command(), ERAS[0], env=env) as other:
            await fields(other, "create_upload_url", filename="a", size_bytes=5)
            assert len(found_in(tmp_path)) == 2  # the living are left alone


async def test_a_restart_of_an_http_server_loses_no_stored_file(tmp_path: Path) -> None:
    env = {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path)}
    with http_server(env=env) as server:
        async with connected(server.url, ERAS[1]) as client:
            given = await fields(client, "create_upload_url", filename="a", size_bytes=5)
        assert (await put(given, b"hello")).status_code == 200
    with http_server(env=env) as server:
        async with connected(server.url, ERAS[1]) as client:
            placed = await fields(
                client, "place_upload", upload_id=given["upload_id"], path="/tmp/a"
            )
            assert placed["bytes_written"] == 5


@pytest.fixture
def tokens(tmp_path: Path) -> tuple[Path, NewToken, NewToken]:
    file = tmp_path / "tokens"
    one, two = make_token("one"), make_token("two")
    file.write_text(f"{one.line}\n{two.line}\n")
    file.chmod(0o600)
    return file, one, two


async def raw_fields(raw: RawHttp, token: str, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool with a bearer token, in a session of its own."""
    raw.session = {"authorization": f"Bearer {token}"}
    answer = await raw.post(
        b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25",'
        b'"capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}'
    )
    raw.session["mcp-session-id"] = answer.headers["mcp-session-id"]
    raw.session["mcp-protocol-version"] = ERAS[0]
    await raw.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    result = (await raw.call(1, tool, **arguments))["result"]
    found: dict[str, Any] = result["structuredContent"]
    return found


async def test_a_session_belongs_to_the_token_that_opened_it(
    tokens: tuple[Path, NewToken, NewToken],
) -> None:
    file, one, two = tokens
    with http_server(env={"AGENT_SANDBOX_TOKEN_FILE": str(file)}) as server:
        async with RawHttp.open(server.url) as raw:
            given = await raw_fields(
                raw, one.token, "create_upload_url", filename="a", size_bytes=5
            )
            upload_id = given["upload_id"]
            assert (await put(given, b"hello")).status_code == 200
            for tool, more in (
                ("get_upload", {}),
                ("revoke_upload", {}),
                ("place_upload", {"path": "/tmp/a"}),
            ):
                foreign = await raw_fields(raw, two.token, tool, upload_id=upload_id, **more)
                assert foreign["error_category"] == "not_found"
            own = await raw_fields(raw, one.token, "get_upload", upload_id=upload_id)
            assert own["state"] == "stored"


async def test_each_secret_is_worth_nothing_at_the_other_door(
    tokens: tuple[Path, NewToken, NewToken],
) -> None:
    file, one, _ = tokens
    with http_server(env={"AGENT_SANDBOX_TOKEN_FILE": str(file)}) as server:
        async with RawHttp.open(server.url) as raw:
            given = await raw_fields(
                raw, one.token, "create_upload_url", filename="a", size_bytes=5
            )
            secret = given["headers"]["Authorization"]
            for shown in (secret, f"Bearer {secret}"):
                raw.session = {"authorization": shown}
                assert (await raw.post(tool_call(1, "list_sandboxes"))).status_code == 401
            for shown in (one.token, f"Bearer {one.token}", f"Bearer {secret}"):
                assert (await put(given, b"hello", Authorization=shown)).status_code == 404
            assert (await put(given, b"hello")).status_code == 200


async def test_removing_a_token_kills_its_unused_secrets(
    tokens: tuple[Path, NewToken, NewToken],
) -> None:
    file, one, two = tokens
    with http_server(env={"AGENT_SANDBOX_TOKEN_FILE": str(file)}) as server:
        async with RawHttp.open(server.url) as raw:
            lost = await raw_fields(raw, one.token, "create_upload_url", filename="a", size_bytes=5)
            kept = await raw_fields(raw, two.token, "create_upload_url", filename="a", size_bytes=5)
            file.write_text(f"{two.line}\n")
            raw.session = {"authorization": f"Bearer {one.token}"}
            with anyio.fail_after(WAIT_S):
                while (await raw.post(tool_call(1, "list_sandboxes"))).status_code != 401:
                    pass  # the file is looked at now and then, and nothing else tells
            assert (await put(lost, b"hello")).status_code == 410
            assert (await put(kept, b"hello")).status_code == 200


async def test_a_default_sandbox_that_died_is_replaced_and_gets_the_whole_file(
    express: Service,
) -> None:
    env = {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}
    data = os.urandom(3_000_000)
    with http_server(env=env) as server:
        async with connected(server.url, ERAS[0]) as client:
            made = await client.call_tool("create_sandbox", {})
            assert made.structured_content is not None
            async with SandboxClient(api_url=express.url, sandbox_url=express.url) as away:
                await away.kill(made.structured_content["sandbox_id"])
            given = await fields(client, "create_upload_url", filename="a", size_bytes=len(data))
            assert (await put(given, data)).status_code == 200
            placed = await fields(
                client, "place_upload", upload_id=given["upload_id"], path="/tmp/a"
            )
            assert placed["sandbox_created"] is True
            assert placed["sandbox_id"] != made.structured_content["sandbox_id"]
            assert placed["bytes_written"] == len(data)


async def unknown_place(client: Client, relay: Any, path: str) -> tuple[dict[str, Any], str]:
    """Bring a session to an unknown outcome: the write is held until its time is over."""
    made = await fields(client, "create_sandbox")
    given = await fields(client, "create_upload_url", filename="a", size_bytes=5)
    assert (await put(given, b"hello")).status_code == 200
    relay.hold(b"POST /files")
    unknown = await fields(client, "place_upload", upload_id=given["upload_id"], path=path)
    assert (unknown["error_category"], unknown["state"]) == ("file_transfer", "placing")
    assert "Do not PUT again" in unknown["error"]
    relay.release()
    return given, made["sandbox_id"]


async def test_an_unknown_outcome_that_did_nothing_is_placed_by_the_next_call(
    express: Service,
) -> None:
    async with (
        relayed_http(express.url, {"transfer_timeout_s": 2.0}) as (server, relay),
        connected(server.url, ERAS[0]) as client,
    ):
        given, _ = await unknown_place(client, relay, "/tmp/a")
        placed = await fields(client, "place_upload", upload_id=given["upload_id"], path="/tmp/b")
        # The file of the first attempt is not there, so this one is the first that counts.
        assert placed["replayed"] is False
        assert placed["bytes_written"] == 5


async def test_an_unknown_outcome_that_took_effect_is_found_by_size_and_digest(
    express: Service,
) -> None:
    async with (
        relayed_http(express.url, {"transfer_timeout_s": 2.0}) as (server, relay),
        connected(server.url, ERAS[0]) as client,
    ):
        given, sandbox_id = await unknown_place(client, relay, "/tmp/a")
        written = await fields(client, "upload_file", path="/tmp/a", content_base64="aGVsbG8=")
        assert written["sandbox_id"] == sandbox_id
        relay.seen.clear()
        placed = await fields(client, "place_upload", upload_id=given["upload_id"], path="/tmp/b")
        assert (placed["path"], placed["replayed"]) == ("/tmp/a", True)
        assert not [line for line in relay.seen if line.startswith(b"POST /files")]
