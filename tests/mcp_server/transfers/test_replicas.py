"""Two MCP servers behind nginx, on one PostgreSQL and one bucket: no request is tied to one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.mcp_server.transfers.test_journey import fields
from tests.support import upload_parts
from tests.support.agent import command, shell
from tests.support.express import Service
from tests.support.mcp_servers import ERAS, connected, environment
from tests.support.nginx import proxy
from tests.support.upload_parts import free_port, wait_for_port


@contextmanager
def replica(port: int, *options: str, **env: str) -> Iterator[str]:
    arguments = ["mcp", "--transport", "http", "--port", str(port), *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "agent_sandbox", *arguments],
        env=environment(env),
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for_port(port, process)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def replicas(tmp_path: Path, express: Service) -> Iterator[tuple[str, str]]:
    key = tmp_path / "key"
    key.write_bytes(secrets.token_bytes(32))
    key.chmod(0o600)
    with ExitStack() as stack:
        dsn = stack.enter_context(upload_parts.postgres())
        bucket = stack.enter_context(upload_parts.s3_server())
        ports = free_port(), free_port()
        front = stack.enter_context(proxy(tmp_path / "nginx", *ports))
        options = (
            *("--upload-url", f"http://127.0.0.1:{front}", "--uploads-key-file", str(key)),
            *("--uploads-bucket", bucket["bucket"], "--uploads-s3-endpoint", bucket["endpoint"]),
            *("--uploads-s3-region", bucket["region"]),
        )
        env = {
            "AGENT_SANDBOX_API_URL": express.url,
            "AGENT_SANDBOX_URL": express.url,
            "AGENT_SANDBOX_UPLOADS_DATABASE": dsn,
            "AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path / "unused"),
            "AWS_SKIP_SIGNATURE": "true",
        }
        first, second = (stack.enter_context(replica(port, *options, **env)) for port in ports)
        yield first, second
        assert not (tmp_path / "unused").exists()  # everything is shared


async def test_create_put_and_place_may_each_meet_another_replica(
    replicas: tuple[str, str], tmp_path: Path
) -> None:
    first, second = replicas
    data = os.urandom(12_000_000)  # more than one part of a multipart upload
    (tmp_path / "FILE").write_bytes(data)

    async def send(given: dict[str, Any]) -> Any:
        secret = given["headers"]["Authorization"]
        done = await asyncio.to_thread(shell, command(given["instructions"]), tmp_path, secret)
        return json.loads(done.stdout)

    async with connected(first, ERAS[1]) as here, connected(second, ERAS[1]) as there:
        made = await fields(here, "create_sandbox")
        where = {"sandbox_id": made["sandbox_id"]}
        probed = await fields(there, "check_transfer")
        line = command(probed["instructions"])
        await asyncio.to_thread(shell, line, tmp_path, probed["probe"]["headers"]["Authorization"])
        assert (await fields(here, "check_transfer"))["put"] == "arrived"
        # nginx prefers the first replica: a session of the second one proves the rest.
        given = await fields(there, "create_upload_url", filename="a", size_bytes=len(data))
        assert (await send(given))["state"] == "stored"
        again = await send(given)
        assert again["code"] == "E7007"
        looked = await fields(here, "get_upload", upload_id=given["upload_id"])
        assert looked["sha256"] == hashlib.sha256(data).hexdigest()
        both = await asyncio.gather(
            *(
                fields(one, "place_upload", upload_id=given["upload_id"], path="/tmp/a", **where)
                for one in (here, there)
            )
        )
        assert sorted(one["replayed"] for one in both) == [False, True]
        assert {one["sha256"] for one in both} == {looked["sha256"]}
        out = await fields(there, "create_download_url", path="/tmp/a", **where)
        (tmp_path / "FILE").unlink()
        secret = out["headers"]["Authorization"]
        done = await asyncio.to_thread(shell, command(out["instructions"]), tmp_path, secret)
        assert done.returncode == 0
        assert (tmp_path / "FILE").read_bytes() == data
        await fields(here, "kill_sandbox", **where)
