"""The example server of docs/uploads.md, run as it stands, with curl as the agent."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.support.agent import command, shell
from tests.support.mcp_servers import ERAS, connected, environment
from tests.support.upload_parts import free_port, wait_for_port

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "spreadsheet_server.py"
SHEET = b'\xef\xbb\xbfname,price\r\n"two\r\nlines",1\r\nplain,2\r\n'
"""Three rows, one of them with a line end in it, after a byte order mark."""


@contextmanager
def example(folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", str(EXAMPLE), str(port)],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.terminate()
        process.communicate(timeout=30)


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    return dict(result.structured_content or {})


@pytest.mark.parametrize("era", ERAS)
async def test_the_example_receives_a_spreadsheet_and_counts_its_rows(
    tmp_path: Path, era: str
) -> None:
    (tmp_path / "FILE").write_bytes(SHEET)
    with example(tmp_path) as (url, process):
        async with connected(url, era) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            assert tools[-2:] == ["count_rows", "check_transfer"]
            refused = await call(client, "create_upload_url", filename="a.exe", size_bytes=1)
            assert refused["error_category"] == "invalid_input"
            given = await call(
                client, "create_upload_url", filename="prices.csv", size_bytes=len(SHEET)
            )
            secret = given["headers"]["Authorization"]
            line = command(given["instructions"])
            done = await asyncio.to_thread(shell, line, tmp_path, secret)
            assert json.loads(done.stdout)["state"] == "stored"
            for replayed in (False, True):
                counted = await call(client, "count_rows", upload_id=given["upload_id"])
                assert (counted["result"], counted["replayed"]) == ({"rows": 3}, replayed)
        process.terminate()
        printed, _ = process.communicate(timeout=30)
    # Charged when it was used, and once.
    assert printed.decode() == f"charge my-workspace once for {given['upload_id']}\n"


def test_the_example_is_short_enough_to_be_read() -> None:
    lines = [line for line in EXAMPLE.read_text("utf-8").splitlines() if line.strip()]
    assert len(lines) <= 30  # as the issue promises
