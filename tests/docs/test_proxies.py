"""The nginx recipe of docs/proxies.md, as it stands there, with the largest file through it."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client

ROOT = Path(__file__).resolve().parents[2]
FRAME = """
{user}
pid {home}/pid;
error_log {home}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/f;
    uwsgi_temp_path {home}/u;
    scgi_temp_path {home}/s;
{server}
}}
"""


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    command = [sys.executable, "-m", "agent_sandbox", "mcp", "--transport", "http", "--port", "0"]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as p:
        assert p.stderr is not None
        assert select.select([p.stderr], [], [], 30)[0], "the server says nothing"
        address = re.search(r"http://(127\.0\.0\.1:\d+)/mcp", p.stderr.readline())
        assert address is not None
        yield address[1]
        p.terminate()
        p.communicate(timeout=30)


@pytest.fixture(scope="module")
def proxy(upstream: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("nginx")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page = (ROOT / "docs" / "proxies.md").read_text("utf-8")
    (server,) = re.findall(r"```nginx\n(.*?)```", page, re.S)
    assert server.count("127.0.0.1:8000") == 2
    server = server.replace("127.0.0.1:8000", upstream)
    server = server.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};")
    user = "user root;" if os.geteuid() == 0 else ""
    (home / "nginx.conf").write_text(FRAME.format(home=home, server=server, user=user))
    nginx = [
        "nginx",
        "-p",
        str(home),
        "-c",
        str(home / "nginx.conf"),
        "-e",
        str(home / "error.log"),
    ]
    subprocess.run(nginx, check=True, timeout=30)  # returns when it listens
    yield f"http://127.0.0.1:{port}/mcp"
    subprocess.run([*nginx, "-s", "stop"], check=True, timeout=30)


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error
    fields: dict[str, Any] | None = answer.structured_content
    assert fields is not None
    return fields


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_largest_file_goes_both_ways_through_the_recipe(proxy: str, mode: str) -> None:
    data = os.urandom(1_048_576)
    encoded = base64.b64encode(data).decode()
    async with Client(proxy, mode=mode, read_timeout_seconds=60) as client:
        sent = await called(client, "upload_file", path="/tmp/big", content_base64=encoded)
        sandbox_id = sent["sandbox_id"]
        got = await called(client, "download_file", path="/tmp/big", sandbox_id=sandbox_id)
        await called(client, "kill_sandbox", sandbox_id=sandbox_id)
    assert got["sha256"] == sent["sha256"] == hashlib.sha256(data).hexdigest()
    assert base64.b64decode(got["content_base64"]) == data


def test_a_body_beyond_the_recipe_is_refused_by_the_proxy(proxy: str) -> None:
    answer = httpx2.post(proxy, content=b"x" * (2 * 1024 * 1024 + 1), trust_env=False)
    assert answer.status_code == 413


def test_a_foreign_host_is_refused_without_the_recipe(upstream: str) -> None:
    answer = httpx2.post(
        f"http://{upstream}/mcp", headers={"host": "mcp.example.com"}, trust_env=False
    )
    assert answer.status_code == 421
