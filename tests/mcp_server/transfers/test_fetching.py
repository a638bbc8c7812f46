"""`fetch_url` through our own server: a real https server, real verification, a real sandbox."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client
from tests.mcp_server.transfers.test_journey import fields
from tests.support.mcp_servers import ERAS, TRANSPORTS, connected, http_server
from tests.uploads.test_fetch import AUTHORITY, World, answering, ok, redirect, world

PROGRAM = ("-m", "tests.support.fetching_server")
LINK = "https://files.example/report.bin"


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def server(transport: str, net: World, folder: Path) -> AsyncIterator[Client]:
    AUTHORITY.cert_pem.write_to_path(folder / "ca.pem")
    env = {"TEST_FETCH_PORT": str(net.port), "SSL_CERT_FILE": str(folder / "ca.pem")}
    if transport == "stdio":
        async with connected([sys.executable, *PROGRAM, "mcp"], ERAS[1], env=env) as client:
            yield client
        return
    running = http_server(env=env, program=PROGRAM)
    one = await asyncio.to_thread(running.__enter__)
    try:
        async with connected(one.url, ERAS[0]) as client:
            yield client
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def test_a_public_link_arrives_whole_in_a_sandbox(transport: str, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    async with world(answering(ok(data))) as net, server(transport, net, tmp_path) as client:
        done = await fields(client, "fetch_url", url=LINK, path="/tmp/report.bin")
        digest = hashlib.sha256(data).hexdigest()
        assert (done["bytes_written"], done["sha256"]) == (len(data), digest)
        assert done["path"] == "/tmp/report.bin"
        where = {"sandbox_id": done["sandbox_id"], "path": "/tmp"}
        listed = await fields(client, "list_files", **where)
        assert [(file["name"], file["size_bytes"]) for file in listed["entries"]] == [
            ("report.bin", len(data))
        ]
        await fields(client, "kill_sandbox", sandbox_id=done["sandbox_id"])


async def test_a_link_that_breaks_off_or_leads_inside_writes_nothing(
    transport: str, tmp_path: Path
) -> None:
    answers = iter([ok(b"x" * 9)[:-1], redirect("https://127.0.0.1/")])

    async def serve(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(next(answers))

    async with world(serve) as net, server(transport, net, tmp_path) as client:
        made = await fields(client, "create_sandbox")
        where = {"sandbox_id": made["sandbox_id"]}
        cut = await fields(client, "fetch_url", url=LINK, path="/tmp/a", **where)
        assert cut["error_category"] == "file_transfer"
        inside = await fields(client, "fetch_url", url=LINK, path="/tmp/a", **where)
        assert inside["error_category"] == "permission_denied"
        listed = await fields(client, "list_files", path="/tmp", **where)
        assert listed["entries"] == []
        await fields(client, "kill_sandbox", **where)
