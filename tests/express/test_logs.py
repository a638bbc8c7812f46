"""No token, path or content in any log line, at DEBUG, whatever fails."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
from tests.support.express import Service, log_lines, served

KEY = "canary-api-key-3f8c"
PATH = "/canary-path-77aa/näme"
CONTENT = b"canary-content-b1d0"
TOKEN = "canary-token-90ce"
NAME = "canary-metadata-5e21"


BROKEN = """
import sys
from agent_sandbox.cli import main
from agent_sandbox.express.tree import Tree
def move(self, source, destination):
    raise RuntimeError(f"{source} {destination}")
Tree.move = move
sys.exit(main())
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    keys = tmp_path / "keys"
    keys.write_text(KEY)
    env = {"AGENT_SANDBOX_LOG_LEVEL": "DEBUG", "PYTHONASYNCIODEBUG": "1"}
    command = (sys.executable, "-c", BROKEN)
    arguments = ("--api-key-file", str(keys))
    with served(tmp_path, *arguments, env=env, api_key=KEY, command=command) as running:
        yield running


def forms(secret: bytes) -> set[bytes]:
    return {secret, base64.b64encode(secret)[:-3], secret.hex().encode(), quote(secret).encode()}


def test_no_canary_reaches_a_log_line(service: Service) -> None:
    box = service.create(metadata={NAME: NAME})
    tokens = [box.token, TOKEN, KEY]
    wrong = {"x-access-token": TOKEN, "x-api-key": TOKEN, "host": NAME, "origin": NAME}
    service.http.get("/v2/sandboxes", headers=wrong, params={"metadata": NAME})
    service.http.post("/v2/sandboxes", content=CONTENT)
    box.put(PATH, CONTENT * 100_000)
    box.put(PATH + "/under-a-file", CONTENT)
    box.get(PATH)
    box.get(PATH + NAME)
    box.get(PATH, headers=wrong)
    box.get(f"{PATH}/../x")
    box.get(PATH, headers={"accept-encoding": "gzip"})
    box.put(PATH, CONTENT, headers={"content-encoding": "gzip"})
    box.http.get(f"/{NAME}", headers=box.headers)
    box.http.get(f"/files?path={PATH}&signature={TOKEN}")
    for rpc in ("Stat", "ListDir", "MakeDir", "Remove", "CreateWatcher", NAME):
        box.rpc(rpc, path=PATH)
    form = box.headers | {"content-type": "multipart/form-data; boundary=x"}
    for body in (CONTENT, b"--x\r\n" + CONTENT, b"--x\r\n\r\n" + CONTENT + b"--x--"):
        box.http.post("/files", content=body, headers=form)
    box.rpc("Move", source=PATH, destination=PATH + NAME)  # what nobody foresaw, see BROKEN
    own = psutil.Process(service.process.pid)
    shown = [one.cmdline() for one in (own, *own.children(recursive=True))]
    assert len(shown) >= 3, "helpers and bubblewrap"
    assert not [one for one in (*tokens, box.token, box.sandbox_id) if one in str(shown)]
    box.kill()
    box.get(PATH)
    assert service.end() == 0
    log = service.log()
    lines = log_lines(log)
    assert sum(line["message"] == "request" for line in lines) > 20
    (broken,) = [line for line in lines if line["message"] == "internal error"]
    assert broken["exception"] == "RuntimeError"
    assert {line.get("sandbox") for line in lines} >= {box.sandbox_id[:8]}
    raw = log.encode()
    for secret in [PATH.encode(), CONTENT, NAME.encode(), *(one.encode() for one in tokens)]:
        for form_of_it in forms(secret):
            assert form_of_it not in raw
    assert box.sandbox_id not in log, "the id is a handle: only its prefix is logged"


def test_a_foreign_message_comes_once_a_second_and_ours_always() -> None:
    code = """
import logging
from agent_sandbox.express.logs import configure_logging
configure_logging("INFO")
for n in range(1_000):
    logging.getLogger("asyncio").error("socket.accept() out of system resource")
    logging.getLogger("agent_sandbox.express").warning("ours")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=30)
    lines = log_lines(ended.stderr.decode())
    assert sum(line["message"] == "ours" for line in lines) == 1_000
    assert 1 <= sum("socket.accept" in line["message"] for line in lines) <= 10


def test_a_request_line_says_what_happened(service: Service) -> None:
    service.http.get("/files?path=/a", headers={"e2b-sandbox-id": "none"})
    assert service.end() == 0
    (line,) = [one for one in log_lines(service.log()) if one["message"] == "request"]
    assert line.pop("ms") >= 0
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "agent_sandbox.express.app",
        "message": "request",
        "method": "GET",
        "route": "/files",
        "status": 502,
        "code": "E5001",
    }
