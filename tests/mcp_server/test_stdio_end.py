"""The end of a STDIO server, each of its bounds alone: no other one helps out."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from tests.mcp_server.test_stdio_wire import alive, pipe
from tests.support.express import Service, wait_until
from tests.support.mcp_servers import tool_call
from tests.support.relay import relay_to

LONG_S = 600
"""Longer than any test waits."""

_PATIENT = f"""\
import atexit, pathlib, sys
from agent_sandbox.mcp_server import app
app.STDIO_EXIT_S = {LONG_S}
atexit.register(pathlib.Path(sys.argv[1]).touch)
app.run_stdio(app.McpConfig(shutdown_timeout_s={LONG_S}))
"""


def patient(told: Path) -> list[str]:
    """Return the command of a server that is never ended hard and would wait long for sandboxes."""
    return [sys.executable, "-c", _PATIENT, str(told)]


async def test_a_destroy_that_hangs_holds_the_end_up_for_no_longer_than_the_client_waits(
    express: Service, tmp_path: Path
) -> None:
    async with relay_to(express.url) as relay:
        env = {"AGENT_SANDBOX_API_URL": relay.url, "AGENT_SANDBOX_URL": relay.url}
        async with pipe(env=env, command=patient(tmp_path / "told")) as it:
            made: Any = await it.ask(tool_call(1, "create_sandbox"))
            sandbox_id = made["result"]["structuredContent"]["sandbox_id"]
            relay.hold(b"DELETE /sandboxes")
            await it.close_input()
            assert alive(express) == {sandbox_id}, json.dumps(made)
        relay.release()
        await asyncio.to_thread(wait_until, lambda: not alive(express))


async def test_what_the_program_has_registered_for_its_end_is_run(tmp_path: Path) -> None:
    async with pipe(command=patient(tmp_path / "told")) as it:
        await it.close_input()
    assert (tmp_path / "told").exists()
