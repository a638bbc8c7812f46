"""Cancellation at every await, and the pool afterwards (R29-R31)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Any

import anyio
import httpx2
import pytest
from tests.client.conftest import LIBRARIES, busy, connected
from tests.support.bad_peer import SANDBOX_ID, TOKEN, WAIT_S, BadPeer, Script, Talk, answer, chunked

import agent_sandbox
from agent_sandbox import limits
from agent_sandbox.client import _drive_async
from agent_sandbox.models import TransferError, TransferTimeoutError


def _silence(talk: Talk) -> None:
    talk.wait_end()


def _half_a_head(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    talk.wait_end()


def _head_only(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    talk.wait_end()


def _some_of_the_body(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
    talk.wait_end()


PHASES: dict[str, Script] = {
    "waiting for the head": _silence,
    "in the head": _half_a_head,
    "before the body": _head_only,
    "in the body": _some_of_the_body,
}


@pytest.fixture(params=["own", "httpx2", "httpx"])
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("script", PHASES.values(), ids=PHASES)
@pytest.mark.parametrize("how", ["task", "scope"])
async def test_a_cancelled_read_closes_its_connection(
    library: str, script: Script, how: str
) -> None:
    with BadPeer(script) as peer:
        async with connected(peer, surface="async", http_client=library) as subject:
            read = subject.sandbox.files.read_bytes("/f", max_bytes=100)
            if how == "task":
                task = asyncio.ensure_future(read)
                await _until(lambda: bool(peer.data_requests))
                await asyncio.sleep(0.01)  # not for correctness: lets the bytes arrive first
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            else:
                assert await _cancelled_once_asked(peer, read)
            assert subject.busy() == 0
            assert await anyio.to_thread.run_sync(peer.data_talk().ended.wait, WAIT_S)


@pytest.mark.parametrize("method", ["write", "stream", "watch", "download", "list"])
async def test_every_method_can_be_cancelled(library: str, method: str, tmp_path: Any) -> None:
    arguments = {"write": [b"abc"], "download": [tmp_path / "goal"]}.get(method, [])
    with BadPeer(_silence) as peer:
        async with connected(peer, surface="async", http_client=library) as subject:
            call = subject.files(method, "/f", *arguments)
            assert await _cancelled_once_asked(peer, call)
            assert subject.busy() == 0
            assert await anyio.to_thread.run_sync(peer.data_talk().ended.wait, WAIT_S)
    assert list(tmp_path.iterdir()) == []


async def test_a_read_that_waits_for_the_pool_can_be_cancelled_and_can_time_out() -> None:
    with BadPeer(_silence) as peer:
        options: dict[str, Any] = {"limits": httpx2.Limits(max_connections=1)}
        async with connected(peer, surface="async", http_client="httpx2", **options) as subject:
            files = subject.sandbox.files
            holder = asyncio.ensure_future(files.read_bytes("/f", max_bytes=1))
            await _until(lambda: bool(peer.data_requests))
            with anyio.move_on_after(0.05) as scope:
                await files.read_bytes("/f", max_bytes=1)
            assert scope.cancelled_caught
            with pytest.raises(TransferTimeoutError):
                await files.read_bytes("/f", max_bytes=1, deadline_s=0.05)
            holder.cancel()
            with pytest.raises(asyncio.CancelledError):
                await holder
            assert subject.busy() == 0


async def test_a_connect_that_hangs_can_be_cancelled_and_can_time_out() -> None:
    """A listener whose queue is full: connecting waits."""
    import socket

    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        fillers = []
        for _ in range(3):
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
            fillers.append(filler)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with agent_sandbox.SandboxClient(api_url=url) as client:
            with anyio.move_on_after(0.1) as scope:
                await client.create()
            assert scope.cancelled_caught
            with pytest.raises(agent_sandbox.AgentSandboxError) as caught:
                await client.create(deadline_s=0.1)
            assert caught.value.code == "E5004"
            assert busy(client._slot._made[-1]) == 0
        for filler in fillers:
            filler.close()


async def test_twenty_workers_with_sixty_random_cancels_each_lose_no_connection() -> None:
    """R31 on httpx2."""
    assert await _storm("httpx2") == 0


async def test_httpx_0_28_loses_slots_by_itself_and_never_through_an_uncancelled_read() -> None:
    """R31 on httpx: its pool loses slots when a read is cancelled, which is not ours to mend.

    What is promised on it: reads that are not cancelled, overflows, deadlines and refusals take
    nothing, so a client without cancellation works for ever.
    """

    def over(talk: Talk) -> None:
        talk.send(chunked(bytes(2000)))

    options: dict[str, Any] = {"limits": LIBRARIES["httpx"].Limits(max_connections=2)}
    with BadPeer(over) as peer:
        async with connected(peer, surface="async", http_client="httpx", **options) as subject:
            files = subject.sandbox.files
            for _ in range(20):
                with pytest.raises(agent_sandbox.FileSizeLimitError):
                    await files.read_bytes("/f", max_bytes=1000)
            assert await files.read_bytes("/f", max_bytes=2000) == bytes(2000)
            assert subject.busy() == 0
    with BadPeer(_head_only) as peer:
        async with connected(peer, surface="async", http_client="httpx", **options) as subject:
            for _ in range(5):
                with pytest.raises(TransferTimeoutError):
                    await subject.files("read_bytes", "/f", max_bytes=1000, deadline_s=0.05)
            assert subject.busy() == 0


async def _storm(library: str) -> int:
    """Run R31 and return how many slots are lost."""
    body = bytes(200_000)
    pieces = [answer(body)[at : at + 20_000] for at in range(0, 200_100, 20_000)]

    def script(talk: Talk) -> None:
        for piece in pieces:
            talk.send(piece)
            time.sleep(0.001)  # spreads the body over time, so that cancels hit it everywhere

    dice = random.Random(31)  # noqa: S311 - a repeatable order, not a secret
    options = {"limits": LIBRARIES[library].Limits(max_connections=10)}
    with BadPeer(script) as peer:
        async with connected(peer, surface="async", http_client=library, **options) as subject:
            files = subject.sandbox.files

            async def worker() -> None:
                for _ in range(60):
                    with anyio.move_on_after(dice.random() * 0.02):
                        await files.read_bytes("/f", max_bytes=len(body))

            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(worker)
            lost = subject.busy()
            with anyio.fail_after(WAIT_S):
                for _ in range(10):
                    assert await files.read_bytes("/f", max_bytes=len(body)) == body
    return lost


# --- A close that hangs -----------------------------------------------------------------------


class HangingBody(httpx2.AsyncByteStream):
    """A body of four bytes whose close never returns, shielded as httpcore shields its own."""

    def __init__(self, *, fails: bool = False) -> None:
        self.closing = anyio.Event()
        self.fails = fails

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"abcd"
        if self.fails:
            raise httpx2.ReadError("canary")

    async def aclose(self) -> None:
        self.closing.set()
        if self.fails:
            raise httpx2.CloseError("canary")
        with anyio.CancelScope(shield=True):
            await anyio.sleep(WAIT_S)


class Hanging(httpx2.AsyncBaseTransport):
    """A transport whose bodies are `HangingBody`."""

    def __init__(self, *, fails: bool = False) -> None:
        self.body = HangingBody(fails=fails)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if "/connect" in request.url.path:
            sandbox = {
                "templateID": "base",
                "sandboxID": SANDBOX_ID,
                "envdVersion": "0.6.4",
                "envdAccessToken": TOKEN,
            }
            return httpx2.Response(200, json=sandbox)
        return httpx2.Response(200, headers={"content-length": "4"}, stream=self.body)


@pytest.mark.parametrize("ending", ["overflow", "cancelled"])
async def test_a_close_that_hangs_is_left_after_a_bounded_time(
    ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert limits.CLOSE_TIMEOUT_S == 5.0
    monkeypatch.setattr(_drive_async, "CLOSE_TIMEOUT_S", 0.2)
    transport = Hanging()
    async with httpx2.AsyncClient(transport=transport) as http:
        client = agent_sandbox.SandboxClient(api_url="http://127.0.0.1:9", http_client=http)
        sandbox = await client.connect(SANDBOX_ID)
        started = time.monotonic()
        if ending == "overflow":
            with pytest.raises(agent_sandbox.FileSizeLimitError):
                await sandbox.files.read_bytes("/f", max_bytes=3)
        else:
            task = asyncio.ensure_future(sandbox.files.read_bytes("/f", max_bytes=3))
            await transport.body.closing.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert time.monotonic() - started < 3
        assert transport.body.closing.is_set()
    for pending in list(_drive_async._closing):
        pending.cancel()
        await asyncio.wait({pending})
    assert not _drive_async._closing


async def test_a_close_that_fails_changes_nothing() -> None:
    transport = Hanging(fails=True)
    async with httpx2.AsyncClient(transport=transport) as http:
        client = agent_sandbox.SandboxClient(api_url="http://127.0.0.1:9", http_client=http)
        sandbox = await client.connect(SANDBOX_ID)
        with pytest.raises(TransferError):
            await sandbox.files.read_bytes("/f", max_bytes=4)


async def _cancelled_once_asked(peer: BadPeer, call: Awaitable[Any]) -> bool:
    """Cancel a call by its scope when its request is there; returns whether that ended it."""
    caught = False

    async def cancelled() -> None:
        nonlocal caught
        with scope:
            await call
        caught = scope.cancelled_caught

    scope = anyio.CancelScope()
    async with anyio.create_task_group() as group:
        group.start_soon(cancelled)
        await _until(lambda: bool(peer.data_requests))
        scope.cancel()
    return caught


async def _until(condition: Any) -> None:
    with anyio.fail_after(WAIT_S):
        while not condition():  # noqa: ASYNC110 - what another thread does sets no event here
            await anyio.sleep(0.001)
