"""What a client may send over HTTP, header by header, and what comes back."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from tests.support.express import Service
from tests.support.mcp_servers import (
    ERAS,
    WAIT_S,
    HttpServer,
    RawHttp,
    http_server,
    initialize,
    modern_call,
    modern_headers,
    relayed_http,
    request,
    tool_call,
)
from tests.support.relay import Relay

from agent_sandbox.limits import MAX_FILE_BYTES


@pytest.fixture
async def raw(shared_http: HttpServer) -> AsyncIterator[RawHttp]:
    async with RawHttp.open(shared_http.url) as raw:
        yield raw


async def test_a_host_that_is_no_host_is_400(raw: RawHttp) -> None:
    assert (await raw.post(initialize(1), host="localhost:x")).status_code == 400


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:80", ""])
async def test_a_host_that_is_not_ours_is_421(raw: RawHttp, host: str) -> None:
    answer = await raw.post(initialize(1), host=host)
    assert answer.status_code == 421
    assert host not in answer.text or not host


@pytest.mark.parametrize("path", ["/mcp/", "/health/"])
async def test_no_answer_leads_to_a_host_that_nobody_checked(raw: RawHttp, path: str) -> None:
    url = raw.url.removesuffix("/mcp") + path
    answer = await raw.http.post(url, content=initialize(1), headers={"host": "evil.example"})
    assert answer.status_code in (404, 421)
    assert "evil" not in str(answer.headers)


async def test_an_address_that_ends_in_a_slash_is_served(raw: RawHttp) -> None:
    raw.url += "/"
    await raw.initialize()
    assert (await raw.post(request(1, "ping"))).json()["result"] == {}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9", "LocalHost", "[::1]:8000"])
async def test_a_loopback_name_is_ours_with_any_port(raw: RawHttp, host: str) -> None:
    assert (await raw.post(initialize(1), host=host)).status_code == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://localhost", "http://localhost.evil:80"]
)
async def test_a_foreign_origin_is_403_whatever_the_method(raw: RawHttp, origin: str) -> None:
    for method in ("POST", "GET", "DELETE", "OPTIONS"):
        answer = await raw.http.request(
            method, raw.url, content=initialize(1), headers={**raw.headers, "origin": origin}
        )
        assert answer.status_code == 403
        assert answer.json()["error"]["message"] == "This Origin is not allowed."
        assert "access-control-allow-origin" not in answer.headers


async def test_a_local_origin_is_allowed_and_a_configured_one_too() -> None:
    config = {"allowed_hosts": ["MCP.example"], "allowed_origins": ["https://app.example"]}
    with http_server(config) as server:
        async with RawHttp.open(server.url) as raw:
            for origin in ("http://localhost:3000", "https://app.example"):
                answer = await raw.post(initialize(1), host="mcp.example", origin=origin)
                assert answer.status_code == 200
            assert (await raw.post(initialize(1), host="mcp.example:1")).status_code == 421


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"canary", b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"\\ud800"}}'],
)
async def test_a_body_that_is_no_json_gets_a_fixed_text_in_both_eras(
    raw: RawHttp, body: bytes
) -> None:
    await raw.initialize()
    answer = await raw.post(body)
    assert answer.status_code == 400
    assert answer.json() == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32700, "message": "Parse error: the body is not valid JSON."},
    }
    raw.session = {}
    answer = await raw.post(body, **modern_headers("x"))
    assert answer.status_code == 400
    assert "canary" not in answer.text


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "1.0", "id": 1, "method": "canary"},
        {"jsonrpc": "2.0", "id": 1.5, "method": "canary"},
        {"jsonrpc": "2.0", "id": None, "method": "canary"},
        {"jsonrpc": "2.0", "id": [1], "method": "canary", "params": {"x": "y" * 100_000}},
        {"jsonrpc": "2.0", "id": 1, "method": ["canary"]},
        {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": "canary"},
        ["canary"],
        "canary",
    ],
)
async def test_a_malformed_envelope_gets_a_fixed_text(raw: RawHttp, message: object) -> None:
    await raw.initialize()
    answer = await raw.post(json.dumps(message).encode())
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "The message is not valid JSON-RPC 2.0."
    assert answer.json()["id"] is None
    raw.session = {}
    answer = await raw.post(json.dumps(message).encode(), **modern_headers("x"))
    assert answer.status_code == 400
    assert "canary" not in answer.text


NO_OBJECTS = [[], ["canary"], "canary", 5, True]


@pytest.mark.parametrize("arguments", NO_OBJECTS)
async def test_arguments_that_are_no_object_are_refused_without_a_word_of_them(
    raw: RawHttp, arguments: object
) -> None:
    call = {"name": "read_file", "arguments": arguments}
    old = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    modern = json.loads(modern_call(1, "read_file"))
    modern["params"]["arguments"] = arguments
    lone = await raw.post(json.dumps(modern).encode(), **modern_headers("read_file"))
    await raw.initialize()
    in_session = await raw.post(json.dumps(old).encode())
    for answer in (lone, in_session):
        assert answer.json()["error"]["code"] == -32602
        assert "canary" not in answer.text


async def test_arguments_that_are_null_are_none(raw: RawHttp) -> None:
    await raw.initialize()
    for tool, works in (("list_sandboxes", True), ("read_file", False)):
        call = {"name": tool, "arguments": None}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        fields = (await raw.post(json.dumps(message).encode())).json()["result"]
        assert fields["isError"] is not works
        assert works or fields["structuredContent"]["error_category"] == "invalid_input"


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_a_request_that_opens_no_session_is_told_of_none(raw: RawHttp, method: str) -> None:
    headers = {**raw.headers, "content-type": "application/json"}
    body = tool_call(1, "list_sandboxes")
    answer = await raw.http.request(method, raw.url, content=body, headers=headers)
    assert answer.status_code == 400
    assert "Missing session ID" in answer.text
    assert "mcp-session-id" not in answer.headers


@pytest.mark.parametrize("field", ["path", "content_base64", "sandbox_id"])
async def test_a_lone_surrogate_is_invalid_input_on_2026_07_28(raw: RawHttp, field: str) -> None:
    arguments = {"path": "/tmp/x", "content_base64": "AP8=", field: "/\ud800"}
    body = modern_call(1, "upload_file", **arguments)
    answer = await raw.post(body, **modern_headers("upload_file"))
    assert answer.json()["result"]["structuredContent"]["error_category"] == "invalid_input"


async def test_a_header_that_contradicts_the_body_or_an_unknown_version_is_refused(
    raw: RawHttp,
) -> None:
    body = modern_call(1, "list_sandboxes")
    good = modern_headers("list_sandboxes")
    assert (await raw.post(body, **good)).status_code == 200
    for wrong in (
        {"mcp-name": "kill_sandbox"},
        {"mcp-method": "tools/list"},
        {"mcp-protocol-version": "2027-01-01"},
    ):
        answer = await raw.post(body, **{**good, **wrong})
        assert answer.status_code == 400
        assert "error" in answer.json()


@pytest.mark.parametrize("request_id", [2**64, "x" * 100_000, "\u2603"])
async def test_an_id_is_echoed_exactly(raw: RawHttp, request_id: object) -> None:
    await raw.initialize()
    answer = await raw.post(request(request_id, "ping"))
    assert answer.json() == {"jsonrpc": "2.0", "id": request_id, "result": {}}


async def test_a_session_that_was_ended_is_unknown(raw: RawHttp) -> None:
    await raw.initialize()
    assert (await raw.http.delete(raw.url, headers=raw.session)).status_code == 200
    for answer in (
        await raw.post(request(1, "ping")),
        await raw.http.get(raw.url, headers={**raw.headers, **raw.session}),
        await raw.http.delete(raw.url, headers=raw.session),
    ):
        assert answer.status_code == 404


async def test_the_largest_file_passes_and_a_body_over_the_sdks_limit_is_413(
    raw: RawHttp,
) -> None:
    await raw.initialize()
    content = "x" * MAX_FILE_BYTES
    answer = await raw.post(tool_call(1, "write_file", path="/tmp/x", content=content))
    assert answer.json()["result"]["structuredContent"]["bytes_written"] == MAX_FILE_BYTES
    assert (await raw.post(b" " * (4 * 1024 * 1024 + 1))).status_code == 413
    assert (await raw.post(b" " * (4 * 1024 * 1024))).status_code == 400


async def test_health_answers_without_a_session(raw: RawHttp) -> None:
    answer = await raw.http.get(raw.url.removesuffix("/mcp") + "/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


@pytest.fixture
def impatient() -> Iterator[HttpServer]:
    with http_server({"body_deadline_s": 0.5}) as server:
        yield server


@pytest.mark.parametrize("era", ERAS)
def test_a_body_that_does_not_arrive_is_cut_at_the_deadline(
    impatient: HttpServer, era: str
) -> None:
    with socket.create_connection(impatient.address, timeout=WAIT_S) as peer:
        began = time.monotonic()
        peer.sendall(
            b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Accept: application/json\r\nContent-Length: 4194304\r\n"
            b"MCP-Protocol-Version: " + era.encode() + b"\r\n\r\n{"
        )
        received = b""
        while chunk := peer.recv(65536):
            received += chunk
        assert received.startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - began >= 0.5


@asynccontextmanager
async def relayed(
    express: Service, config: dict[str, float] | None = None
) -> AsyncIterator[tuple[RawHttp, Relay]]:
    async with (
        relayed_http(express.url, config) as (server, relay),
        RawHttp.open(server.url) as raw,
    ):
        yield raw, relay


async def test_in_one_session_an_id_in_flight_is_refused_and_the_first_call_unhurt(
    express: Service,
) -> None:
    async with relayed(express) as (raw, relay), RawHttp.open(raw.url) as other:
        await raw.initialize()
        await other.initialize()
        relay.hold(b"POST /files")
        first = asyncio.create_task(raw.call(1, "write_file", path="/tmp/x", content="1"))
        await relay.wait_held()
        for twin in (1, "1", "01", " 1"):
            refused = await raw.post(request(twin, "ping"))
            assert refused.status_code == 400
            assert refused.json()["id"] is None
        large = "x" * 100_000
        refused = await raw.post(tool_call(1, "write_file", path="/tmp/y", content=large))
        assert refused.status_code == 400
        for name in (b'"id"', b'"\\u0069d"'):  # of two ids the last one counts
            twice = request(3, "ping", x=large)[:-1] + b"," + name + b":1}"
            assert (await raw.post(twice)).status_code == 400
        assert (await raw.post(request(2, "ping"))).status_code == 200
        assert (await other.post(request(1, "ping"))).status_code == 200
        relay.release()
        answer = await first
        assert answer["id"] == 1
        assert answer["result"]["structuredContent"]["bytes_written"] == 1
        assert (await raw.post(request("1", "ping"))).json()["id"] == "1"


async def test_on_2026_07_28_the_same_id_is_served_twice_at_once(express: Service) -> None:
    async with relayed(express) as (raw, relay):
        relay.hold(b"POST /files")
        headers = modern_headers("write_file")
        calls = [
            asyncio.create_task(
                raw.post(modern_call(1, "write_file", path="/tmp/x", content="x" * size), **headers)
            )
            for size in (1, 2)
        ]
        await relay.wait_held()
        relay.release()
        for size, answer in zip((1, 2), await asyncio.gather(*calls), strict=True):
            assert answer.json()["result"]["structuredContent"]["bytes_written"] == size


def content_of(express: Service, path: str) -> set[bytes]:
    """Return what the file is in each living sandbox that has it, as the host sees it."""
    roots = express.state_dir.glob(f"instances/*/*/root{path}")
    return {file.read_bytes() for file in roots}


async def hang_up(raw: RawHttp, body: bytes, relay: Relay, **headers: str) -> None:
    """Send a call and disconnect while it waits in the relay."""
    async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S) as http:
        given = {"content-type": "application/json", **raw.headers, **raw.session, **headers}
        call = asyncio.create_task(http.post(raw.url, content=body, headers=given))
        await relay.wait_held()
        call.cancel()
        await asyncio.wait([call])


async def test_up_to_2025_11_25_a_call_runs_on_when_its_client_disconnects(
    express: Service,
) -> None:
    async with relayed(express) as (raw, relay):
        await raw.initialize()
        await raw.call(1, "write_file", path="/tmp/x", content="old")
        relay.hold(b"POST /files")
        await hang_up(raw, tool_call(2, "write_file", path="/tmp/x", content="new"), relay)
        assert not relay.dropped.is_set()
        relay.release()
        for _ in range(50):  # the id is in flight until the call has ended
            answer = await raw.call(2, "read_file", path="/tmp/x")
            if "result" in answer:
                break
        assert answer["result"]["structuredContent"]["content"] == "new"


async def test_on_2026_07_28_a_call_is_cancelled_when_its_client_disconnects(
    express: Service,
) -> None:
    box = express.create()
    box.put("/tmp/x", b"old")
    async with relayed(express) as (raw, relay):
        relay.hold(b"POST /files")
        body = modern_call(1, "write_file", path="/tmp/x", content="new", sandbox_id=box.sandbox_id)
        await hang_up(raw, body, relay, **modern_headers("write_file"))
        await relay.wait_dropped()
        relay.release()
        assert box.get("/tmp/x").content == b"old"


async def test_a_sandbox_made_for_a_lone_call_that_is_cancelled_is_destroyed(
    express: Service,
) -> None:
    async with relayed(express) as (raw, relay):
        relay.hold(b"POST /files")
        body = modern_call(1, "write_file", path="/tmp/x", content="new")
        await hang_up(raw, body, relay, **modern_headers("write_file"))
        await relay.wait_dropped()
        relay.release()
    assert express.http.get("/v2/sandboxes").json() == []


async def test_a_cancelled_notification_ends_the_call_and_frees_its_id(express: Service) -> None:
    async with relayed(express) as (raw, relay):
        await raw.initialize()
        await raw.call(1, "write_file", path="/tmp/x", content="old")
        relay.hold(b"POST /files")
        call = asyncio.create_task(raw.call(2, "write_file", path="/tmp/x", content="new"))
        await relay.wait_held()
        told = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}'
        assert (await raw.post(told)).status_code == 202
        await relay.wait_dropped()
        relay.release()
        assert "error" in await call
        answer = await raw.call(2, "read_file", path="/tmp/x")
        assert answer["result"]["structuredContent"]["content"] == "old"


async def test_a_delete_in_the_middle_of_a_call_ends_it_with_nothing_half_written(
    express: Service,
) -> None:
    box = express.create()
    box.put("/tmp/x", b"old")
    async with relayed(express) as (raw, relay):
        await raw.initialize()
        relay.hold(b"POST /files")
        call = asyncio.create_task(
            raw.call(1, "write_file", path="/tmp/x", content="new", sandbox_id=box.sandbox_id)
        )
        await relay.wait_held()
        assert content_of(express, "/tmp/x") == {b"old"}
        assert (await raw.http.delete(raw.url, headers=raw.session)).status_code == 200
        await relay.wait_dropped()
        assert "error" in await call
        assert content_of(express, "/tmp/x") <= {b"old"}
        assert (await raw.post(request(2, "ping"))).status_code == 404


async def test_a_write_that_times_out_says_that_it_may_have_arrived(express: Service) -> None:
    config = {"transfer_timeout_s": 0.3, "resolve_timeout_s": 0.3}
    async with relayed(express, config) as (raw, relay):
        await raw.initialize()
        await raw.call(1, "write_file", path="/tmp/x", content="old")
        relay.hold(b" /files")
        told = {}
        for tool, more in (("write_file", {"content": "new"}), ("read_file", {})):
            answer = await raw.call(2, tool, path="/tmp/x", **more)
            told[tool] = answer["result"]["structuredContent"]
        assert {fields["error_category"] for fields in told.values()} == {"timeout"}
        assert "inspect the remote file" in told["write_file"]["error"]
        assert "no data was returned" in told["read_file"]["error"]


async def test_a_sandbox_that_is_ready_too_late_is_a_timeout_and_is_destroyed(
    express: Service,
) -> None:
    async with relayed(express, {"resolve_timeout_s": 0.3}) as (raw, relay):
        await raw.initialize()
        relay.hold(b"POST /v2/sandboxes")
        answer = await raw.call(1, "create_sandbox")
        fields = answer["result"]["structuredContent"]
        assert fields["error_category"] == "timeout"
        assert "ready in time" in fields["error"]
        relay.release()
        await raw.http.delete(raw.url, headers=raw.session)
    assert express.http.get("/v2/sandboxes").json() == []
