"""An agent with a shell: curl, with the instructions as they are given."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.agent import command, shell
from tests.support.upload_server import OWNER, UploadServer

from agent_sandbox.uploads.guidance import download_instructions, upload_instructions


@pytest.mark.parametrize("size", [0, 15_961, 3_000_000])
def test_the_given_command_uploads_a_file_of_any_size(
    any_server: UploadServer, tmp_path: Path, size: int
) -> None:
    (tmp_path / "FILE").write_bytes(os.urandom(size))
    ticket = any_server.create(size)
    url = any_server.config.url("upload", ticket.upload_id)
    done = shell(command(upload_instructions(url)), tmp_path, ticket.secret)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["state"] == "stored"
    assert any_server.state(ticket) == "stored"


def test_the_command_of_the_seed_works_too(server: UploadServer, tmp_path: Path) -> None:
    (tmp_path / "catalogue.xlsx").write_bytes(b"PK\x03\x04" + os.urandom(15_957))
    ticket = server.create(15_961)
    line = (
        'curl -X PUT "$UPLOAD_URL" -H "Authorization: $T"'
        ' -H "Content-Type: application/octet-stream" --data-binary @catalogue.xlsx'
    )
    line = f"UPLOAD_URL={server.config.url('upload', ticket.upload_id)}; {line}"
    done = shell(line, tmp_path, ticket.secret)
    assert json.loads(done.stdout)["size_bytes"] == 15_961


def test_a_refused_command_tells_the_agent_what_to_do_next(
    server: UploadServer, tmp_path: Path
) -> None:
    (tmp_path / "FILE").write_bytes(b"x" * 2_000_000)
    ticket = server.create(5)
    url = server.config.url("upload", ticket.upload_id)
    done = shell(command(upload_instructions(url)), tmp_path, ticket.secret)
    answer = json.loads(done.stdout)
    assert answer["code"] == "E7025"
    assert "not used" in answer["next_step"]


def test_a_compressing_client_is_refused(server: UploadServer, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_bytes(b"hello")
    ticket = server.create(5)
    url = server.config.url("upload", ticket.upload_id)
    line = command(upload_instructions(url)).replace("curl", "curl -H 'Content-Encoding: gzip'")
    assert json.loads(shell(line, tmp_path, ticket.secret).stdout)["code"] == "E7023"


def test_a_stream_of_unknown_length_is_refused_and_can_be_repeated(
    server: UploadServer, tmp_path: Path
) -> None:
    ticket = server.create(5)
    url = server.config.url("upload", ticket.upload_id)
    line = f'printf hello | curl -sS -H "Authorization: $T" -T - {url}'
    assert json.loads(shell(line, tmp_path, ticket.secret).stdout)["code"] == "E7024"
    (tmp_path / "FILE").write_bytes(b"hello")
    done = shell(command(upload_instructions(url)), tmp_path, ticket.secret)
    assert json.loads(done.stdout)["state"] == "stored"


def test_the_secret_is_in_no_process_list(server: UploadServer, tmp_path: Path) -> None:
    (tmp_path / "FILE").write_bytes(b"x" * 3_000_000)
    ticket = server.create(3_000_000)
    url = server.config.url("upload", ticket.upload_id)
    line = command(upload_instructions(url)).replace("curl", "curl --limit-rate 2M")
    running = subprocess.Popen(
        ["bash", "-c", line],
        cwd=tmp_path,
        env={"T": ticket.secret, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
    )
    seen: set[bytes] = set()
    while running.poll() is None:
        for process in Path("/proc").iterdir():
            if re.fullmatch(r"\d+", process.name):
                try:
                    seen.add((process / "cmdline").read_bytes())
                except OSError:  # it has ended
                    continue
    out, _ = running.communicate(timeout=10)
    assert json.loads(out)["state"] == "stored"
    assert any(b"--limit-rate" in line for line in seen)
    assert not any(ticket.secret.encode() in line for line in seen)


def test_the_given_command_downloads_a_file(any_server: UploadServer, tmp_path: Path) -> None:
    data = os.urandom(2_000_000)

    async def chunks() -> AsyncIterator[bytes]:
        yield data

    session, secret = any_server.call(
        lambda: any_server.service.stage_download(OWNER, "out.bin", chunks(), len(data))
    )
    line = command(download_instructions(any_server.config.url("download", session.upload_id)))
    assert shell(line, tmp_path, secret).returncode == 0
    assert (tmp_path / "FILE").read_bytes() == data
    again = shell(line, tmp_path, secret)
    assert again.returncode == 22  # -f: an HTTP error
