"""What whoever runs the server sees and says: settings, the audit log, metrics, a proxy, an end."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import re
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest
from tests.mcp_server.transfers.test_journey import fields
from tests.mcp_server.transfers.test_server import found_in, put
from tests.support import nginx
from tests.support.mcp_servers import ERAS, connected, environment, http_server, stdio_command
from tests.support.raw_http import RawClient, request

from agent_sandbox.mcp_server.transfers.audit_file import audit_file

PAGE = Path(__file__).resolve().parents[3] / "docs" / "uploads.md"


def shapes_of(canary: str) -> list[bytes]:
    """Return what a secret looks like raw and encoded."""
    raw = canary.encode()
    return [raw, raw.hex().encode(), base64.b64encode(raw)]


def files_in(folder: Path) -> list[Path]:
    """Return every file below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]


async def started(*options: str) -> tuple[int | None, str]:
    """Start an HTTP server that cannot run; return its status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_sandbox", "mcp", "--transport", "http", "--port", "0"),
        *options,
        env=environment(),
        stderr=asyncio.subprocess.PIPE,
    )
    _, errors = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, errors.decode()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--uploads-dir", "open"], "nobody else may write"),
        (["--uploads-dir", "file"], "cannot be made or opened"),
        (
            ["--uploads-dir", "own", "--uploads-key-file", "missing"],
            "(--uploads-key-file) is missing",
        ),
        (
            ["--uploads-dir", "own", "--uploads-key-file", "open"],
            "(--uploads-key-file) cannot be read",
        ),
        (
            ["--uploads-dir", "own", "--uploads-key-file", "file"],
            "(--uploads-key-file) must be a regular file of at least",
        ),
        (["--uploads-dir", "own", "--upload-audit-file", "no/such/file"], "(--upload-audit-file)"),
        (["--uploads-dir", "own", "--uploads-database", "postgresql://127.0.0.1:1/x"], "database"),
    ],
)
async def test_what_cannot_work_ends_the_server_with_its_reason(
    tmp_path: Path, options: list[str], says: str
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    given = [one if one.startswith(("-", "postgresql")) else str(tmp_path / one) for one in options]
    status, printed = await started(*given)
    assert status not in (0, None)
    assert says in printed
    assert "Traceback" not in printed
    assert "withheld" not in printed  # of a server under ours, which has no more to say
    assert str(tmp_path) not in printed.replace(str(tmp_path / "open"), "")


async def test_an_audit_file_on_a_full_disk_stops_nothing_and_is_told_once(tmp_path: Path) -> None:
    command = [*stdio_command(), "--upload-audit-file", "/dev/full"]
    errors = (tmp_path / "stderr").open("w+")
    async with connected(command, ERAS[1], errors=errors) as client:
        for _ in range(3):
            given = await fields(client, "create_upload_url", filename="a.bin", size_bytes=1)
            await put(given, b"x")
        found = await fields(client, "get_upload", upload_id=given["upload_id"])
        assert found["state"] == "stored"
    errors.seek(0)
    printed = errors.read()
    errors.close()
    assert printed.count("the audit file of uploads cannot be written (ENOSPC)") == 1
    assert "Traceback" not in printed


def test_an_audit_file_that_was_full_goes_on_with_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("agent_sandbox.uploads.audit")
    real = os.write
    with audit_file(str(tmp_path / "audit")):
        logger.info("one")
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda fd, line: real(fd, line[:7]))
            logger.info("two")
            patched.setattr(os, "write", lambda fd, line: real(-1, line))
            logger.info("three")
        logger.info("four")
        logger.info("five")
    lines = (tmp_path / "audit").read_text("utf-8").splitlines()
    assert [line[21:] for line in lines] == ["one", "", "four", "five"]
    assert len(caplog.messages) == 1


async def test_the_audit_log_and_the_metrics_hold_ids_and_states_and_nothing_else(
    tmp_path: Path,
) -> None:
    audit = tmp_path / "audit"
    command = [*stdio_command(), "--upload-audit-file", str(audit), "--upload-metrics"]
    body = b"canary-content-1f6e"
    errors = (tmp_path / "stderr").open("w+")
    secrets: list[str] = []
    async with connected(command, ERAS[1], errors=errors) as client:
        given = await fields(
            client, "create_upload_url", filename="canary-name.bin", size_bytes=len(body)
        )
        secrets.append(given["headers"]["Authorization"])
        await put(given, body)
        path = "/tmp/canary-path"
        placed = await fields(client, "place_upload", upload_id=given["upload_id"], path=path)
        assert placed["state"] == "placed"
        out = await fields(client, "create_download_url", path=path)
        secrets.append(out["headers"]["Authorization"])
        parts = urlsplit(given["url"])
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            metrics = (await http.get(f"http://{parts.netloc}/metrics")).text
        assert re.search(
            r'agent_sandbox_upload_changes_total\{action="place",state="placed"\} 1', metrics
        )
        cmdlines = b"".join(
            (process / "cmdline").read_bytes()
            for process in found_in(Path("/proc"))
            if process.name.isdigit() and (process / "cmdline").exists()
        )
    errors.seek(0)
    printed = errors.read()
    errors.close()
    lines = audit.read_text("utf-8").splitlines()
    assert audit.stat().st_mode & 0o777 == 0o600
    form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ upload [0-9a-f]{32} \w+ -> \w+( \(E\d{4}\))?"
    assert all(re.fullmatch(form, line) for line in lines)
    told = [line.split(" ", 3)[3] for line in lines if given["upload_id"] in line]
    assert told == [
        "create -> pending", "claim -> receiving", "receive -> stored",
        "place -> placing", "place -> placed",
    ]  # fmt: skip
    assert printed == ""
    everywhere = "\n".join([*lines, metrics, printed]).encode() + cmdlines
    for canary in (*secrets, "canary-name", "canary-content", "canary-path"):
        shapes = (
            canary.encode(),
            canary.encode().hex().encode(),
            base64.b64encode(canary.encode()),
        )
        assert not any(shape in everywhere for shape in shapes)


async def test_no_file_of_the_server_holds_a_secret(tmp_path: Path) -> None:
    command = [*stdio_command(), "--uploads-dir", str(tmp_path)]
    async with connected(command, ERAS[0]) as client:
        given = await fields(client, "create_upload_url", filename="a", size_bytes=5)
        secret = given["headers"]["Authorization"]
        await put(given, b"hello")
        kept = [file.read_bytes() for file in files_in(tmp_path)]
        assert kept
        assert not any(shape in data for shape in shapes_of(secret) for data in kept)


async def test_a_put_under_way_does_not_hold_up_the_end_of_a_stdio_server(tmp_path: Path) -> None:
    env = {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path)}
    errors = (tmp_path.parent / "stderr").open("w+")
    async with connected(stdio_command(), ERAS[0], env=env, errors=errors) as client:
        given = await fields(client, "create_upload_url", filename="a", size_bytes=1_000_000)
        parts = urlsplit(given["url"])
        sending = await asyncio.to_thread(RawClient, parts.port or 0)
        sending.send(
            request(
                "PUT",
                parts.path,
                f"Authorization: {given['headers']['Authorization']}",
                "Content-Length: 1000000",
                "Expect: 100-continue",
            )
        )
        assert (await asyncio.to_thread(sending.answer)).status == 100  # the attempt is taken
        sending.send(b"x" * 1000)
        looked = await fields(client, "get_upload", upload_id=given["upload_id"])
        assert looked["state"] == "receiving"
    sending.sock.close()
    # It ended in order, not by being killed: its directory is gone, and it complained of nothing.
    assert found_in(tmp_path) == []
    errors.seek(0)
    assert "Traceback" not in errors.read()
    errors.close()


async def test_the_nginx_recipe_lets_a_large_file_through(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```nginx\n(.*?)```", PAGE.read_text("utf-8"), re.S)
    data = os.urandom(8_000_000)
    with http_server() as server:
        host, port = server.address
        here = recipe.replace("127.0.0.1:8000", f"{host}:{port}")
        with nginx.serving(tmp_path / "nginx", here) as front:
            async with connected(server.url, ERAS[1]) as client:
                given: dict[str, Any] = await fields(
                    client, "create_upload_url", filename="a", size_bytes=len(data)
                )
                given["url"] = given["url"].replace(f"{host}:{port}", f"127.0.0.1:{front}")
                assert (await put(given, data)).status_code == 200


async def test_a_port_that_is_taken_fails_the_call_and_not_the_server(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = [*stdio_command(), "--upload-port", str(port)]
        env = {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path / "uploads")}
        with (tmp_path / "stderr").open("w+") as errors:
            async with connected(command, ERAS[1], env=env, errors=errors) as client:
                for _ in range(2):
                    failed = await fields(client, "create_upload_url", filename="a", size_bytes=1)
                    assert "error" in failed
                    assert found_in(tmp_path / "uploads") == []
                taken.close()
                given = await fields(client, "create_upload_url", filename="a", size_bytes=5)
                assert urlsplit(given["url"]).port == port
                assert (await put(given, b"hello")).status_code == 200
            errors.seek(0)
            told = errors.read()
    assert told.count("\n") == 1, "once is enough"
    assert f"127.0.0.1:{port} is in use: choose another --upload-port" in told


async def test_a_directory_that_cannot_work_is_told_when_a_stdio_server_starts(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    for more, given in (
        ([], {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path / "file")}),
        (["--uploads-dir", str(tmp_path / "file" / "below")], {}),
    ):
        process = await asyncio.create_subprocess_exec(
            *(*stdio_command(), *more),
            env=environment(given),
            stdin=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, errors = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, "everything else works"
        assert errors.decode().count("\n") == 1
        assert "uploads will not work: The directory of uploads (--uploads-dir)" in errors.decode()


async def test_over_http_uploads_that_cannot_start_are_told_and_everything_else_works(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    with http_server(env={"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path / "file")}) as server:
        async with connected(server.url, ERAS[1]) as client:
            for _ in range(2):
                assert "error" in await fields(
                    client, "create_upload_url", filename="a", size_bytes=1
                )
            assert (await fields(client, "list_sandboxes"))["success"]
        async with httpx2.AsyncClient(trust_env=False, timeout=30) as http:
            guide = await http.get(server.url.replace("/mcp", "/llms.txt"))
        assert guide.status_code == 500
        told = server.end().splitlines()
    assert [line.partition("uploads ")[2].partition(":")[0] for line in told] == [
        "will not work",
        "cannot start",
    ]


async def test_first_calls_at_the_same_time_open_one_endpoint(tmp_path: Path) -> None:
    env = {"AGENT_SANDBOX_UPLOADS_DIR": str(tmp_path)}
    async with connected(stdio_command(), ERAS[1], env=env) as client:
        opened = await asyncio.gather(
            *(fields(client, "create_upload_url", filename="a", size_bytes=1) for _ in range(8))
        )
        assert len({urlsplit(one["url"]).netloc for one in opened}) == 1
        assert len({one["upload_id"] for one in opened}) == 8
        assert len(found_in(tmp_path)) == 1
