"""`agent-sandbox put`, as a person and a script use it."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.mcp_servers import environment
from tests.support.upload_server import Ticket, UploadServer, running

from agent_sandbox.errors import EXIT_STATUS
from agent_sandbox.errors.base import Category

COMMAND = [sys.executable, "-m", "agent_sandbox", "put"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UploadServer]:
    with running(tmp_path_factory.mktemp("uploads"), pending_per_workspace=100) as made:
        yield made


def put(file: Path, url: str, secret: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, str(file), url],
        input=secret,
        env=environment(env),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def url_of(server: UploadServer, ticket: Ticket) -> str:
    return server.config.url("upload", ticket.upload_id)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "file name.bin"
    made.write_bytes(b"x" * 1_000_000)
    return made


@pytest.mark.parametrize("way", ["stdin", "environment"])
def test_the_code_comes_from_standard_input_or_the_environment(
    server: UploadServer, file: Path, way: str
) -> None:
    ticket = server.create(1_000_000)
    if way == "stdin":
        done = put(file, url_of(server, ticket), ticket.secret + "\n")
    else:
        done = put(file, url_of(server, ticket), AGENT_SANDBOX_UPLOAD_SECRET=ticket.secret)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"stored: 1000000 bytes, sha256 [0-9a-f]{64}\n", done.stdout)
    assert ticket.upload_id in done.stderr
    assert "\r" not in done.stderr  # no bar where nobody looks
    assert server.state(ticket) == "stored"


def test_without_a_code_one_line_says_where_it_belongs(server: UploadServer, file: Path) -> None:
    done = put(file, url_of(server, server.create(1_000_000)))
    assert done.returncode == 2
    assert "the one-time code is missing" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("size", "secret", "category", "says"),
    [
        (1_000_001, "", "invalid_input", "another size than the one that was declared"),
        (1_000_000, "wrong", "not_found", "Check that id, url and headers belong together"),
    ],
)
def test_a_refusal_ends_with_advice(
    server: UploadServer, file: Path, size: int, secret: str, category: Category, says: str
) -> None:
    ticket = server.create(size)
    done = put(file, url_of(server, ticket), secret or ticket.secret)
    assert (done.returncode, done.stdout) == (EXIT_STATUS[category], "")
    assert done.stderr.startswith("agent-sandbox: ")
    assert re.search(r"^next: .+", done.stderr, re.M)
    assert says in done.stderr
    assert ticket.secret not in done.stderr
    assert server.state(ticket) == "pending"


def test_a_second_try_says_not_to_send_again(server: UploadServer, file: Path) -> None:
    ticket = server.create(1_000_000)
    assert put(file, url_of(server, ticket), ticket.secret).returncode == 0
    again = put(file, url_of(server, ticket), ticket.secret)
    assert again.returncode != 0
    assert "do not PUT again" in again.stderr


def test_a_server_that_is_not_there_leaves_the_code_usable(file: Path) -> None:
    done = put(file, "http://127.0.0.1:1/uploads/x", "code")
    assert done.returncode != 0
    assert "The server was not reached; nothing was sent." in done.stderr
    assert "The code still works" in done.stderr


@pytest.mark.parametrize("path", ["/upload/x", "/llms.txt"])
def test_an_address_where_something_else_answers_is_called_so(
    server: UploadServer, file: Path, path: str
) -> None:
    ticket = server.create(1_000_000)
    done = put(file, f"http://127.0.0.1:{server.port}{path}", ticket.secret)
    assert done.returncode == EXIT_STATUS["file_transfer"]
    assert f"answered there with status {404 if path == '/upload/x' else 200}" in done.stderr
    assert "Compare the URL" in done.stderr
    assert "the code still works" in done.stderr
    assert put(file, url_of(server, ticket), ticket.secret).returncode == 0


def test_a_file_that_is_missing_is_told_before_the_code_is_asked_for(tmp_path: Path) -> None:
    done = put(tmp_path / "nothing", "http://127.0.0.1:1/uploads/x")
    assert done.returncode == 2
    assert done.stderr.startswith(f"agent-sandbox: {tmp_path}/nothing: No such file or directory")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("url", ["http://files.example.com/uploads/x", "ftp://x/y", "nonsense"])
def test_an_address_that_would_show_the_code_to_others_is_refused(file: Path, url: str) -> None:
    done = put(file, url, "code")
    assert done.returncode == 2
    assert "The URL or the code cannot be right; nothing was sent." in done.stderr
    assert "plain http is for this machine itself only" in done.stderr


def test_a_folder_is_refused(server: UploadServer, tmp_path: Path) -> None:
    ticket = server.create(1)
    done = put(tmp_path, url_of(server, ticket), ticket.secret)
    assert done.returncode == 2
    assert "pack a folder first" in done.stderr
    assert server.state(ticket) == "pending"


def test_on_a_terminal_the_code_is_asked_for_unseen_and_a_bar_is_drawn(
    server: UploadServer, file: Path
) -> None:
    ticket = server.create(1_000_000)
    child, terminal = pty.fork()
    if not child:
        os.execve(  # noqa: S606 - our own command
            sys.executable, [*COMMAND, str(file), url_of(server, ticket)], environment()
        )
    seen = b""
    asked = False
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end and select.select([terminal], [], [], 30)[0]:
            try:
                seen += os.read(terminal, 65_536)
            except OSError:  # the other side is closed
                break
            if b"one-time code: " in seen and not asked:
                asked = True
                os.write(terminal, ticket.secret.encode() + b"\n")
    finally:
        _, status = os.waitpid(child, 0)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    assert ticket.secret.encode() not in seen
    assert b"1.0/1.0 MB" in seen
    assert server.state(ticket) == "stored"
