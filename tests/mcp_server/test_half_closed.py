"""A client that ends its side of the connection and still reads.

TCP tells this no different from a client that has gone. So it is the same to us: up to 2025-11-25 a
call runs on, on 2026-07-28 it is cancelled, and who can still hear it is told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.express import Service
from tests.support.mcp_servers import (
    WAIT_S,
    HttpServer,
    RawHttp,
    modern_call,
    modern_headers,
    relayed_http,
    tool_call,
)
from tests.support.relay import Relay


@asynccontextmanager
async def relayed(express: Service) -> AsyncIterator[tuple[HttpServer, Relay]]:
    async with relayed_http(express.url) as (server, relay):
        yield server, relay


class HalfClosed:
    """A request whose sender has ended its side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def send(cls, server: HttpServer, body: bytes, headers: dict[str, str]) -> HalfClosed:
        """Send a request on a connection of its own."""
        reader, writer = await asyncio.open_connection(*server.address)
        given = {
            "host": "localhost",
            "content-type": "application/json",
            "content-length": str(len(body)),
            **RawHttp.headers,
            **headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        writer.write(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return cls(reader, writer)

    def end_side(self) -> None:
        self._writer.write_eof()

    async def answer(self) -> tuple[int, Any]:
        """Read to the end of the connection; return the status and the body."""
        async with asyncio.timeout(WAIT_S):
            head, _, body = (await self._reader.read()).partition(b"\r\n\r\n")
            self._writer.close()
            await self._writer.wait_closed()
        return int(head.split(b" ")[1]), json.loads(body)


async def test_up_to_2025_11_25_it_is_answered(express: Service) -> None:
    async with relayed(express) as (server, relay), RawHttp.open(server.url) as raw:
        await raw.initialize()
        relay.hold(b"POST /files")
        body = tool_call(1, "write_file", path="/tmp/x", content="new")
        it = await HalfClosed.send(server, body, raw.session)
        await relay.wait_held()
        it.end_side()
        relay.release()
        status, answer = await it.answer()
    assert (status, answer["result"]["structuredContent"]["bytes_written"]) == (200, 3)


async def test_on_2026_07_28_it_is_cancelled_and_told_so(express: Service) -> None:
    box = express.create()
    box.put("/tmp/x", b"old")
    async with relayed(express) as (server, relay):
        relay.hold(b"POST /files")
        body = modern_call(1, "write_file", path="/tmp/x", content="new", sandbox_id=box.sandbox_id)
        it = await HalfClosed.send(server, body, modern_headers("write_file"))
        await relay.wait_held()
        it.end_side()
        status, answer = await it.answer()
        await relay.wait_dropped()
        relay.release()
    assert status == 400
    assert "closed for sending, which cancels a call" in answer["error"]["message"]
    assert box.get("/tmp/x").content == b"old"
