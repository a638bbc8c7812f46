"""A file past the model: over STDIO and HTTP, in both eras, with curl as the agent's shell."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from tests.mcp_server.conftest import Connect
from tests.support.agent import command, shell


async def fields(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Return the fields of a result, of a failure too."""
    result = await client.call_tool(tool, arguments)
    found: dict[str, Any] = dict(result.structured_content or {})
    assert bool(result.is_error) == ("error" in found)
    return found


async def run(given: dict[str, Any], folder: Path) -> Any:
    """Run the instructions of a result as an agent does; return what curl printed."""
    line = command(given["instructions"])
    secret = given["headers"]["Authorization"]
    done = await asyncio.to_thread(shell, line, folder, secret)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


@pytest.mark.parametrize("size", [0, 15_961, 5_000_000])
async def test_a_file_goes_in_and_out_past_the_model(
    connect: Connect, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    digest = hashlib.sha256(data).hexdigest()
    (tmp_path / "FILE").write_bytes(data)
    async with connect() as client:
        given = await fields(
            client, "create_upload_url", filename="a.bin", size_bytes=size, sha256=digest
        )
        assert (await run(given, tmp_path))["state"] == "stored"
        placed = await fields(
            client, "place_upload", upload_id=given["upload_id"], path="/tmp/in/a.bin"
        )
        assert (placed["bytes_written"], placed["sha256"]) == (size, digest)
        again = await fields(
            client, "place_upload", upload_id=given["upload_id"], path="/tmp/other"
        )
        assert (again["path"], again["replayed"]) == ("/tmp/in/a.bin", True)
        # What it says about the sandbox holds for the call that used it, not for the repeat.
        assert not {"sandbox_created", "next_step"} & again.keys()
        where = {"sandbox_id": placed["sandbox_id"]}
        listed = await fields(client, "list_files", path="/tmp", **where)
        assert "other" not in [entry["name"] for entry in listed["entries"]]
        out = await fields(client, "create_download_url", path="/tmp/in/a.bin", **where)
        assert (out["size_bytes"], out["sha256"]) == (size, digest)
        (tmp_path / "FILE").unlink()
        await run(out, tmp_path)
        assert (tmp_path / "FILE").read_bytes() == data
        await fields(client, "kill_sandbox", **where)


async def test_a_wait_ends_when_curl_has_sent_the_file(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_bytes(b"hello")
    async with connect() as client:
        given = await fields(client, "create_upload_url", filename="a.bin", size_bytes=5)
        waiting = asyncio.create_task(
            fields(client, "get_upload", upload_id=given["upload_id"], wait_seconds=25)
        )
        await run(given, tmp_path)
        assert (await waiting)["state"] == "stored"
        await fields(client, "revoke_upload", upload_id=given["upload_id"])


async def test_the_probe_of_check_transfer_arrives_by_its_instructions(
    connect: Connect, tmp_path: Path
) -> None:
    async with connect() as client:
        first = await fields(client, "check_transfer")
        assert first["inline_limit_bytes"] == 1_048_576
        assert first["host"] in first["probe"]["url"]
        probe = {"instructions": first["instructions"], "headers": first["probe"]["headers"]}
        assert (await run(probe, tmp_path))["size_bytes"] == 0
        assert (await fields(client, "check_transfer"))["put"] == "arrived"


async def test_creating_and_sending_touch_no_sandbox(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_bytes(b"hello")
    async with connect() as client:
        before = await fields(client, "list_sandboxes")
        given = await fields(client, "create_upload_url", filename="a.bin", size_bytes=5)
        await run(given, tmp_path)
        await fields(client, "get_upload", upload_id=given["upload_id"])
        early = await fields(client, "create_upload_url", filename="b.bin", size_bytes=5)
        refused = await fields(client, "place_upload", upload_id=early["upload_id"], path="/tmp/b")
        assert refused["error_category"] == "invalid_input"
        assert "sandbox_id" not in refused
        for one in (given, early):
            await fields(client, "revoke_upload", upload_id=one["upload_id"])
        after = await fields(client, "list_sandboxes")
        assert len(after["sandboxes"]) == len(before["sandboxes"])


async def test_the_secret_is_in_the_headers_alone(connect: Connect) -> None:
    async with connect() as client:
        result = await client.call_tool("create_upload_url", {"filename": "a", "size_bytes": 1})
        given: dict[str, Any] = dict(result.structured_content or {})
        secret = given.pop("headers")["Authorization"]
        assert secret not in json.dumps(given)
        looked = await client.call_tool("get_upload", {"upload_id": given["upload_id"]})
        assert secret not in looked.model_dump_json()
        await fields(client, "revoke_upload", upload_id=given["upload_id"])


async def test_a_file_that_is_not_there_makes_no_download(connect: Connect) -> None:
    async with connect() as client:
        failed = await fields(client, "create_download_url", path="/tmp/missing")
        assert failed["error_category"] == "not_found"
        await fields(client, "kill_sandbox", sandbox_id=failed["sandbox_id"])


async def test_a_link_into_a_private_network_makes_no_sandbox(connect: Connect) -> None:
    async with connect() as client:
        failed = await fields(client, "fetch_url", url="https://127.0.0.1/", path="/tmp/x")
        assert failed["error_category"] == "permission_denied"
        assert "sandbox_id" not in failed


async def test_what_was_retyped_wrongly_is_refused_with_the_way_to_take(connect: Connect) -> None:
    async with connect() as client:
        for wrong in ({"size_bytes": 3}, {"sha256": "0" * 64}):
            failed = await fields(
                client, "upload_file", path="/tmp/x", content_base64="AP8=", **wrong
            )
            assert failed["error_category"] == "invalid_input"
            assert "Do not retype" in failed["error"]
            assert "create_upload_url" in failed["next_step"]
        large = "A" * 1_398_108
        failed = await fields(client, "upload_file", path="/tmp/x", content_base64=large)
        assert failed["error_category"] == "size_limit"
        assert "create_upload_url" in failed["next_step"]
