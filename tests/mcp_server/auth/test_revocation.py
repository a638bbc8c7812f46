"""The end of rights while the server runs: of the next request, open ones, streams and sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.types import Message, Receive, Scope, Send
from tests.support.express import Service, wait_until
from tests.support.guarded import Guarded
from tests.support.mcp_servers import (
    ERAS,
    WAIT_S,
    RawHttp,
    connected,
    initialize,
    modern_call,
    modern_headers,
    relayed_http,
    request,
    tool_call,
)

from agent_sandbox.errors import CredentialsInvalidError
from agent_sandbox.mcp_server.auth.authority import Authority
from agent_sandbox.mcp_server.auth.bearer import BearerGate, Challenge
from agent_sandbox.mcp_server.auth.tokens import StaticTokens, make_token


def alive(express: Service) -> set[str]:
    return {box["sandboxID"] for box in express.http.get("/v2/sandboxes").json()}


async def until_gone(express: Service, sandbox_id: str) -> None:
    await asyncio.to_thread(wait_until, lambda: sandbox_id not in alive(express))


async def sandbox_of(raw: RawHttp) -> str:
    made = await raw.call(1, "create_sandbox")
    return str(made["result"]["structuredContent"]["sandbox_id"])


@asynccontextmanager
async def stream_of(raw: RawHttp) -> AsyncIterator[httpx2.Response]:
    """Open the stream of a session."""
    async with raw.http.stream("GET", raw.url, headers={**raw.headers, **raw.session}) as stream:
        assert stream.status_code == 200
        yield stream


async def read_to_end(stream: httpx2.Response) -> None:
    """Wait until the server ends a stream, in order."""
    with anyio.fail_after(WAIT_S):
        async for _ in stream.aiter_raw():
            pass


@asynccontextmanager
async def still_open(raw: RawHttp) -> AsyncIterator[None]:
    """Open the stream of a session; at the end of the block it must not have ended."""
    async with stream_of(raw) as stream:
        reader = asyncio.create_task(read_to_end(stream))
        yield
        assert not reader.done()
        reader.cancel()
        await asyncio.wait([reader])


def keep_only(guarded: Guarded, *lines: str) -> None:
    """Replace the token file, as an operator would."""
    new = guarded.token_file.with_suffix(".new")
    new.write_text("\n".join(lines))
    new.replace(guarded.token_file)


async def test_a_deleted_line_ends_the_session_its_stream_and_its_sandboxes_and_no_others(
    fresh: Guarded,
) -> None:
    async with (
        RawHttp.open(fresh.server.url, fresh.one.token) as one,
        RawHttp.open(fresh.server.url, fresh.two.token) as two,
    ):
        for raw in (one, two):
            await raw.initialize()
        lost, kept = await sandbox_of(one), await sandbox_of(two)
        async with stream_of(one) as stream, still_open(two):
            keep_only(fresh, fresh.two.line)
            for answer in (
                await one.post(request(2, "ping")),
                await one.post(initialize(1)),
                await one.http.get(one.url, headers={**one.headers, **one.session}),
            ):
                assert answer.status_code == 401
                assert answer.json()["error"]["message"] == CredentialsInvalidError.text
            await read_to_end(stream)
            await until_gone(fresh.express, lost)
            assert (await two.post(request(2, "ping"))).status_code == 200
            assert kept in alive(fresh.express)
        # The line comes back: the caller is let in, and the session is gone for good.
        keep_only(fresh, fresh.one.line, fresh.two.line)
        assert (await one.post(request(3, "ping"))).status_code == 404
        one.session = {}
        assert (await one.post(initialize(1))).status_code == 200


@pytest.mark.parametrize("era", ERAS)
async def test_a_call_that_runs_is_ended_with_its_rights(fresh: Guarded, era: str) -> None:
    async with (
        relayed_http(fresh.express.url, arguments=fresh.arguments, quiet=False) as (server, relay),
        RawHttp.open(server.url, fresh.one.token) as one,
    ):
        headers = {}
        if era == ERAS[0]:
            await one.initialize()
            body = tool_call(1, "write_file", path="/tmp/x", content="new")
        else:
            body = modern_call(1, "write_file", path="/tmp/x", content="new")
            headers = modern_headers("write_file")
        relay.hold(b"POST /files")
        call = asyncio.create_task(one.post(body, **headers))
        await relay.wait_held()
        keep_only(fresh, fresh.two.line)
        with anyio.fail_after(WAIT_S):
            answer = await call
        assert answer.status_code == 401
        await relay.wait_dropped()
        relay.release()
        # What the call has made belongs to nobody any more.
        await asyncio.to_thread(wait_until, lambda: alive(fresh.express) == set())


@pytest.mark.parametrize("era", ERAS)
async def test_the_official_client_is_told_that_it_is_not_let_in(fresh: Guarded, era: str) -> None:
    async with connected(fresh.server.url, era, token=fresh.one.token) as client:
        assert not (await client.call_tool("list_sandboxes", {})).is_error
        keep_only(fresh, fresh.two.line)
        with pytest.raises(Exception, match=r"."):
            await client.call_tool("list_sandboxes", {})
        keep_only(fresh, fresh.one.line)


@pytest.mark.parametrize("line", ["sub alice", "client agent", "jti token-1"])
async def test_a_line_of_the_deny_file_keeps_a_good_token_out(fresh: Guarded, line: str) -> None:
    others: dict[str, Any] = {"sub": "bob", "client_id": "other", "jti": "token-2"}
    async with (
        RawHttp.open(fresh.server.url, fresh.issuer.token()) as denied,
        RawHttp.open(fresh.server.url, fresh.issuer.token(**others)) as other,
    ):
        await denied.initialize()
        await other.initialize()
        await sandbox_of(other)
        async with stream_of(denied) as stream, still_open(other):
            fresh.deny_file.write_text(f"# found out today\n{line}\n")
            refused = await denied.post(request(2, "ping"))
            assert refused.status_code == 401
            assert 'error="invalid_token"' in refused.headers["www-authenticate"]
            await read_to_end(stream)
            assert (await other.post(request(2, "ping"))).status_code == 200
        if line.startswith("jti"):  # another token of the same caller is not meant
            again = fresh.issuer.token(jti="token-3")
            answer = await denied.post(request(3, "ping"), authorization=f"Bearer {again}")
            assert answer.status_code == 200


async def test_a_deny_file_that_cannot_be_read_keeps_every_access_token_out(
    fresh: Guarded,
) -> None:
    fresh.deny_file.unlink()
    async with RawHttp.open(fresh.server.url, fresh.issuer.token()) as alice:
        assert (await alice.post(initialize(1))).status_code == 401
    async with RawHttp.open(fresh.server.url, fresh.one.token) as one:
        assert (await one.post(initialize(1))).status_code == 200


class Endless:
    """An application whose answer begins and never ends by itself."""

    def __init__(self) -> None:
        self.started, self.ended = asyncio.Event(), asyncio.Event()
        self.sent: list[Message] = []

    async def __call__(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def ask(self, gate: BearerGate, method: str, token: str) -> None:
        """Send a request through a gate, and collect what it answers."""

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            self.sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode())]
        await gate({"type": "http", "method": method, "headers": headers}, receive, send)


IN_ORDER = {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_stream_ends_with_its_token_and_a_call_may_finish() -> None:
    class Brief(Authority):
        async def verify_token(self, token: str) -> AccessToken | None:
            ends_at = int(time.time()) + 2
            return AccessToken(token="", client_id="x", scopes=[], expires_at=ends_at)

    stream, call = Endless(), Endless()
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                call.ask, BearerGate(call, Brief(None, None), Challenge()), "POST", "x"
            )
            await call.started.wait()
            await stream.ask(BearerGate(stream, Brief(None, None), Challenge()), "GET", "x")
            assert stream.sent[-1] == IN_ORDER
            assert not call.ended.is_set()
            tasks.cancel_scope.cancel()


async def test_a_file_that_is_empty_for_a_moment_throws_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_token("one")
    file = tmp_path / "tokens"
    file.write_text(made.line)
    looks: list[None] = []
    turn = asyncio.Event()

    async def tick(_seconds: float) -> None:
        looks.append(None)
        turn.set()
        await may_look.acquire()

    may_look = asyncio.Semaphore(0)
    monkeypatch.setattr("agent_sandbox.mcp_server.auth.bearer.anyio.sleep", tick)

    async def look() -> None:
        await turn.wait()
        turn.clear()
        may_look.release()
        await turn.wait()

    endless = Endless()
    gate = BearerGate(endless, Authority(StaticTokens(file, None), None), Challenge())
    manager = StreamableHTTPSessionManager.__new__(StreamableHTTPSessionManager)
    manager._session_owners = {}
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.watch, manager)
            tasks.start_soon(endless.ask, gate, "GET", made.token)
            await endless.started.wait()
            for _ in range(3):
                file.write_text("")
                await look()
                file.write_text(made.line)
                await look()
            assert not endless.ended.is_set()
            file.write_text("")
            await look()
            await look()
            await endless.ended.wait()
            tasks.cancel_scope.cancel()
    assert endless.sent[-1] == IN_ORDER


async def test_the_watch_goes_on_after_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Authority):
        looks = 0

        def lets_in(self, principal: object, jti: object = None) -> bool:
            self.looks += 1
            if self.looks == 1:
                raise RuntimeError("canary")
            enough.set()
            return True

    enough = asyncio.Event()
    broken = Broken(None, None)
    gate = BearerGate(lambda *_: asyncio.sleep(0), broken, Challenge())
    gate._open[anyio.CancelScope()] = AccessToken(token="", client_id="x", scopes=[])
    manager = StreamableHTTPSessionManager.__new__(StreamableHTTPSessionManager)
    manager._session_owners = {}
    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gate.watch, manager)
            await enough.wait()
            tasks.cancel_scope.cancel()
    assert "canary" not in caplog.text
