"""A crowd of connections before a server that has few descriptors."""

from __future__ import annotations

import contextlib
import socket

import pytest
from tests.support.express import Service
from tests.support.mcp_servers import RawHttp, http_server

FEW_DESCRIPTORS = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from agent_sandbox.cli import main
main()
"""


@pytest.mark.parametrize("sent", [b"", b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n"])
async def test_connections_that_ask_nothing_keep_nobody_out_of_a_new_sandbox(
    express: Service, sent: bytes
) -> None:
    env = {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}
    with http_server(env=env, program=("-c", FEW_DESCRIPTORS)) as server:
        with contextlib.ExitStack() as stack:
            for _ in range(400):
                idle = stack.enter_context(socket.create_connection(server.address, timeout=20))
                with contextlib.suppress(ConnectionError):
                    idle.sendall(sent)
            async with RawHttp.open(server.url) as raw:
                await raw.initialize()
                made = await raw.call(1, "create_sandbox")
                assert "sandbox_id" in made["result"]["structuredContent"]
        printed = server.end()
    lines = printed.splitlines()
    assert lines
    assert all("too many connections: 64 are kept" in line for line in lines)
