"""Retained commands in the SDK: what they keep, and services that know nothing of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx2
import pytest
from tests.support.express import wait_until

from agent_sandbox import Sandbox, SandboxClient, sync
from agent_sandbox.client.providers import local
from agent_sandbox.errors import ArgumentError, UnsupportedError
from agent_sandbox.wire import connect

WAIT_S = 20
WAITS = "until [ -e /tmp/go ]; do sleep 0.05; done"


@pytest.fixture(autouse=True)
def service() -> Iterator[None]:
    yield
    local.stop()


async def until_gone(client: SandboxClient, sandbox_id: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while any(one.sandbox_id == sandbox_id for one in await client.list()):
            pass


async def test_a_released_sandbox_lives_as_long_as_its_retained_command() -> None:
    async with SandboxClient() as client:
        kept, plain = await client.create(), await client.create()
        await kept.commands.start(WAITS, tag="mine", retain_s=600)
        await plain.commands.start(WAITS)
        (listed,) = await kept.commands.list(ended=True)
        assert (listed.tag, listed.retained, listed.exit_code) == ("mine", True, None)
        assert await client.release(plain.sandbox_id)
        assert await client.release(kept.sandbox_id)
        assert [one.sandbox_id for one in await client.list()] == [kept.sandbox_id]
        await kept.files.write("/tmp/go", b"")
        await until_gone(client, kept.sandbox_id)
        assert not await client.release("unknown")


async def test_connecting_takes_a_released_sandbox_over_unless_it_is_only_looked_at() -> None:
    async with SandboxClient() as client:
        for claim in (False, True):
            sandbox = await client.create()
            await sandbox.commands.start(WAITS, tag="mine", retain_s=600)
            await client.release(sandbox.sandbox_id)
            again = await client.connect(sandbox.sandbox_id, claim=claim)
            await again.renew()
            await again.files.write("/tmp/go", b"")
            if claim:
                assert (await again.commands.wait("mine")).exit_code == 0
                assert await client.kill(sandbox.sandbox_id)
            else:
                await until_gone(client, sandbox.sandbox_id)


def test_the_blocking_twin_does_the_same() -> None:
    with sync.SandboxClient() as client:
        sandbox = client.create()
        sandbox.commands.start(["sleep", "1000"], tag="mine", retain_s=600)
        assert client.release(sandbox.sandbox_id)
        assert [one.tag for one in sandbox.commands.list(ended=True)] == ["mine"]
        assert sandbox.commands.kill("mine")
        wait_until(lambda: client.list() == [])


@pytest.mark.parametrize("retain_s", [0, 86_401, True, 1.5])
async def test_a_time_out_of_range_is_refused_before_any_request(retain_s: int) -> None:
    async with await Sandbox.create() as sandbox:
        with pytest.raises(ArgumentError):
            await sandbox.commands.start("true", retain_s=retain_s)
        assert await sandbox.commands.list() == []


async def test_a_service_that_retains_nothing_is_unsupported_and_nothing_runs_on() -> None:
    seen = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request.url.path)
        if request.url.path == "/v2/sandboxes":
            made = {"templateID": "base", "sandboxID": "x", "clientID": "c", "envdVersion": "0"}
            return httpx2.Response(201, json=made | {"envdAccessToken": "t"})
        if request.url.path.endswith("/Start"):
            event = connect.encode_envelope(b'{"event":{"start":{"pid":7}}}')
            lines = {"content-type": connect.STREAM_TYPE}
            return httpx2.Response(200, content=event + connect.encode_end(), headers=lines)
        return httpx2.Response(200, json={})

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    url = "http://127.0.0.1:9"
    async with http, SandboxClient(api_url=url, sandbox_url=url, http_client=http) as client:
        sandbox = await client.create()
        assert (await sandbox.commands.start("sleep 9")).pid == 7
        with pytest.raises(UnsupportedError):
            await sandbox.commands.start("sleep 9", retain_s=60)
    assert seen[-1] == "/process.Process/SendSignal"
