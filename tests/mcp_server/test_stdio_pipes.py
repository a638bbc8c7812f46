"""Pipes that are full, that nobody reads, or that the other side made non-blocking."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp.server.lowlevel.server import Server
from tests.support.mcp_servers import WAIT_S

from agent_sandbox.mcp_server import stdio
from agent_sandbox.mcp_server.stdio import Wire, serve_stdio

LONG_ID = "x" * 2_000_000
"""Comes back in the answer, which fits no pipe."""


@asynccontextmanager
async def serving(*, blocking: bool) -> AsyncIterator[tuple[int, int, asyncio.Task[None]]]:
    """Serve over pipes; yields the client's ends, to write to and to read from."""
    server_in, client_out = os.pipe()
    client_in, server_out = os.pipe()
    for fd in (server_in, server_out):
        os.set_blocking(fd, blocking)
    task = asyncio.create_task(
        serve_stdio(
            Server("plain"),
            Wire(server_in, server_out),
            on_eof=lambda: None,
            on_end=lambda: None,
        )
    )
    writer = os.fdopen(client_out, "wb", buffering=0)
    reader = os.fdopen(client_in, "rb", buffering=0)
    try:
        yield writer.fileno(), reader.fileno(), task
    finally:
        writer.close()
        reader.close()
        await asyncio.wait_for(task, WAIT_S)
        os.close(server_in)
        os.close(server_out)


def ping(request_id: str) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "ping"}).encode() + b"\n"


async def send(fd: int, line: bytes) -> None:
    def write() -> None:
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(fd, rest) :]

    await asyncio.wait_for(asyncio.to_thread(write), WAIT_S)


async def line_from(fd: int) -> bytes:
    def read() -> bytes:
        found = b""
        while not found.endswith(b"\n") and (chunk := os.read(fd, 1_000_000)):
            found += chunk
        return found

    return await asyncio.wait_for(asyncio.to_thread(read), WAIT_S)


@pytest.mark.parametrize("request_id", ["short", LONG_ID], ids=["short", "long"])
async def test_pipes_that_the_other_side_made_non_blocking_lose_nothing(request_id: str) -> None:
    async with serving(blocking=False) as (out, back, _):
        for _ in range(2):
            await send(out, ping(request_id))
            assert json.loads(await line_from(back))["id"] == request_id


async def test_an_answer_that_nobody_reads_is_given_up_soon_after_the_client_has_gone() -> None:
    async with serving(blocking=True) as (out, back, task):
        await send(out, ping(LONG_ID))
        assert await asyncio.wait_for(asyncio.to_thread(os.read, back, 1), WAIT_S)  # it has begun
        end = os.open(os.devnull, os.O_WRONLY)
        os.dup2(end, out)  # closes the client's side, while the answers lie
        os.close(end)
        await asyncio.wait_for(asyncio.shield(task), WAIT_S / 3)


async def test_a_write_that_is_left_behind_reaches_no_other_file(tmp_path: Path) -> None:
    client_in, server_out = os.pipe()
    os.set_blocking(server_out, False)  # one line takes many writes
    writing = asyncio.create_task(stdio._write_line(server_out, b"x" * 4_000_000 + b"\n"))
    assert await asyncio.wait_for(asyncio.to_thread(os.read, client_in, 1), WAIT_S)  # it has begun
    writing.cancel()
    await asyncio.wait([writing])
    other = os.open(tmp_path / "other", os.O_WRONLY | os.O_CREAT)
    os.dup2(other, server_out)  # the number is used again while the thread writes on
    os.close(other)
    try:
        with os.fdopen(client_in, "rb") as rest:
            assert len(await asyncio.wait_for(asyncio.to_thread(rest.read), WAIT_S)) == 4_000_000
    finally:
        os.close(server_out)
    assert (tmp_path / "other").read_bytes() == b""
