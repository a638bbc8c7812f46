"""A kernel whose room for epoll a command in a sandbox has taken: the MCP server goes on."""

from __future__ import annotations

import sys

import pytest
from tests.mcp_server.test_stdio_wire import pipe
from tests.support.mcp_servers import RawHttp, http_server, tool_call

NO_ROOM = """
import errno, os, selectors
register, room = selectors.EpollSelector.register, [0]
def refuse(self, *arguments):
    room[0] += 1
    if room[0] > 2:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return register(self, *arguments)
selectors.EpollSelector.register = refuse
from agent_sandbox.cli import main
main()
"""


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_tools_work_when_epoll_takes_no_more(transport: str) -> None:
    call = tool_call(1, "write_file", path="/tmp/x", content="written")
    if transport == "stdio":
        async with pipe(command=[sys.executable, "-c", NO_ROOM, "mcp"]) as it:
            answer = await it.ask(call)
    else:
        with http_server(program=("-c", NO_ROOM)) as server:
            async with RawHttp.open(server.url) as raw:
                await raw.initialize()
                answer = (await raw.post(call)).json()
    assert answer["result"]["structuredContent"]["bytes_written"] == 7
