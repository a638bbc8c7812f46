"""What a server leaves in a directory that others use, when it ends and when it is killed."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.mcp_server.test_stdio_wire import pipe
from tests.mcp_server.transfers.test_journey import fields
from tests.mcp_server.transfers.test_server import put
from tests.support.mcp_servers import ERAS, connected, http_server, tool_call
from tests.support.raw_http import RawClient, request

SIZE = 1_000_000

_UNHURRIED = """\
import sys
from agent_sandbox.mcp_server import app
from agent_sandbox.mcp_server.transfers.settings import TransferSettings
app.STDIO_EXIT_S = app.STDIO_CLEANUP_S = 600
app.run_stdio(app.McpConfig(transfers=TransferSettings(directory=sys.argv[1])))
"""
"""A STDIO server that a busy machine does not cut short at its end."""


def begin_put(given: dict[str, Any]) -> RawClient:
    """Take the attempt of a session, and send a part of the body."""
    parts = urlsplit(given["url"])
    client = RawClient(parts.port or 0)
    secret = given["headers"]["Authorization"]
    length = f"Content-Length: {SIZE}"
    client.send(
        request("PUT", parts.path, f"Authorization: {secret}", length, "Expect: 100-continue")
    )
    assert client.answer().status == 100  # the attempt is taken
    client.send(b"x" * (SIZE // 2))
    return client


async def test_the_secrets_of_a_stdio_process_end_with_it_where_its_directory_lives_on(
    tmp_path: Path,
) -> None:
    shared = ("--uploads-dir", str(tmp_path))
    with http_server(arguments=shared) as server:
        given = []
        async with pipe(command=[sys.executable, "-c", _UNHURRIED, str(tmp_path)]) as it:
            for number in range(2):
                call = tool_call(number, "create_upload_url", filename="a", size_bytes=5)
                given.append((await it.ask(call))["result"]["structuredContent"])
            # The other server has the same rows: one secret is worth something there, too.
            base = server.url.removesuffix("/mcp")
            for one in given:
                one["url"] = base + urlsplit(one["url"]).path
            assert (await put(given[0], b"hello")).status_code == 200
        assert (await put(given[1], b"hello")).status_code == 410


async def test_an_attempt_that_died_with_its_server_has_failed_when_the_next_one_starts(
    tmp_path: Path,
) -> None:
    shared = ("--uploads-dir", str(tmp_path))
    with http_server(arguments=shared) as server:
        async with connected(server.url, ERAS[1]) as client:
            given = await fields(client, "create_upload_url", filename="a", size_bytes=SIZE)
        with await asyncio.to_thread(begin_put, given):
            await asyncio.to_thread(server.end, signal.SIGKILL)
    with http_server(arguments=shared) as server, http_server(arguments=shared) as other:
        for one in (server, other):
            async with connected(one.url, ERAS[1]) as client:
                seen = await fields(client, "get_upload", upload_id=given["upload_id"])
                assert seen["state"] == "failed"


async def test_a_server_that_starts_beside_another_leaves_its_attempts_alone(
    tmp_path: Path,
) -> None:
    shared = ("--uploads-dir", str(tmp_path))
    with http_server(arguments=shared) as server:
        async with connected(server.url, ERAS[1]) as client:
            given = await fields(client, "create_upload_url", filename="a", size_bytes=SIZE)
            sending = await asyncio.to_thread(begin_put, given)
            with sending, http_server(arguments=shared) as other:
                async with connected(other.url, ERAS[1]) as there:  # it has settled what it found
                    seen = await fields(there, "get_upload", upload_id=given["upload_id"])
                    assert seen["state"] == "receiving"
                sending.send(b"x" * (SIZE // 2))
                assert (await asyncio.to_thread(sending.answer)).status == 200
