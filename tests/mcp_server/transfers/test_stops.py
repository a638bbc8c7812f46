"""A server that is told to stop while a file arrives: its sender hears what became of it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.mcp_server.transfers.test_journey import fields
from tests.support.mcp_servers import (
    ERAS,
    TRANSPORTS,
    WAIT_S,
    connected,
    environment,
    http_server,
    initialize,
    stdio_command,
    tool_call,
)
from tests.support.raw_http import RawClient, request

from agent_sandbox.uploads.store.sqlite import SqliteStore

SIZE = 1_000_000
Opened = tuple[dict[str, Any], Callable[[], Any]]


@asynccontextmanager
async def over_http(folder: Path) -> AsyncIterator[Opened]:
    with http_server(arguments=("--uploads-dir", str(folder))) as server:
        async with connected(server.url, ERAS[1]) as client:
            given = await fields(client, "create_upload_url", filename="a", size_bytes=SIZE)
        yield given, lambda: server.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(server.process.wait, WAIT_S) == 0


@asynccontextmanager
async def over_stdio(folder: Path) -> AsyncIterator[Opened]:
    process = await asyncio.create_subprocess_exec(
        *stdio_command(),
        *("--uploads-dir", str(folder)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(initialize(0) + b"\n")
        await asyncio.wait_for(process.stdout.readline(), WAIT_S)
        process.stdin.write(tool_call(1, "create_upload_url", filename="a", size_bytes=SIZE))
        process.stdin.write(b"\n")
        line = await asyncio.wait_for(process.stdout.readline(), WAIT_S)
        yield json.loads(line)["result"]["structuredContent"], process.terminate
        assert await asyncio.wait_for(process.wait(), WAIT_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("transport", TRANSPORTS)
async def test_a_put_under_way_is_told_that_the_server_stops_and_has_failed(
    tmp_path: Path, transport: str
) -> None:
    opened = over_http if transport == "http" else over_stdio
    async with opened(tmp_path) as (given, stop):
        host, _, path = given["url"].removeprefix("http://").partition("/")
        head = request(
            "PUT",
            f"/{path}",
            f"Authorization: {given['headers']['Authorization']}",
            f"Content-Length: {SIZE}",
            "Expect: 100-continue",
        )

        def put() -> Any:
            with RawClient(int(host.rpartition(":")[2])) as client:
                client.send(head)
                assert client.answer().status == 100  # the attempt is taken
                client.send(b"x" * (SIZE // 2))
                stop()
                return client.answer()

        answer = await asyncio.to_thread(put)
    assert answer.status == 503
    assert answer.headers["agent-sandbox-error"] == "E7027"
    assert answer.json["state"] == "failed"
    assert "create_upload_url" in answer.json["next_step"]
    store = SqliteStore(tmp_path / "uploads.sqlite")
    try:
        session = await store.read(given["upload_id"])
    finally:
        await store.close()
    assert session is not None
    assert (session.state, session.object_key) == ("failed", None)
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == []
