"""The official TypeScript clients, 1.x and 2.x, and the inspector's command line.

`make` installs them into the folder that AGENT_SANDBOX_TS names (see the Makefile).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.mcp_servers import HttpServer, environment, stdio_command
from tests.support.node import NODE, installed_packages

from agent_sandbox.mcp_server.tools import ALL_TOOLS

SCRIPT = Path(__file__).parent / "ts" / "call.mjs"
INSPECTOR = "node_modules/@modelcontextprotocol/inspector/clients/launcher/build/index.js"


@pytest.fixture(scope="module")
def installed() -> Path:
    """The folder with the clients."""
    return installed_packages()


def node(installed: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Any:
    done = subprocess.run(
        [str(NODE), *arguments],
        env=environment({"AGENT_SANDBOX_TS": str(installed), **(env or {})}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize(("generation", "mode"), [("1", "legacy"), ("2", "legacy"), ("2", "auto")])
def test_the_typescript_client_accepts_successes_and_errors(
    installed: Path, shared_http: HttpServer, generation: str, mode: str, transport: str
) -> None:
    target = shared_http.url if transport == "http" else json.dumps(stdio_command())
    calls = [
        ("upload_file", {"path": "/tmp/x", "content_base64": "AP8="}),
        ("upload_file", {"path": "bad", "content_base64": "AP8="}),
        ("download_file", {"path": "/tmp/missing"}),
        ("list_sandboxes", {}),
        ("get_sandbox", {"sandbox_id": "missing"}),
        ("create_sandbox", {"ttl_seconds": 0}),
        ("list_files", {"path": "/"}),
        ("write_file", {"path": "/tmp/x", "content": "x"}),
        ("read_file", {"path": "/tmp/x", "unknown": True}),
        ("run_command", {"command": "printf '\\377'; exit 3"}),
        ("run_command", {"command": "echo begun; sleep 100", "timeout_seconds": 1}),
        ("start_background_task", {"command": "sleep 100"}),
        ("list_background_tasks", {}),
        ("get_background_task", {"task_id": "missing"}),
        ("create_upload_url", {"filename": "a.csv", "size_bytes": 5}),
        ("get_upload", {"upload_id": "missing"}),
        ("check_transfer", {}),
        ("create_download_url", {"path": "/tmp/missing"}),
    ]
    answer = node(installed, str(SCRIPT), generation, transport, mode, target, json.dumps(calls))
    assert answer["tools"] == [tool.name for tool in ALL_TOOLS]
    failed = [bool(result.get("isError")) for result in answer["results"]]
    files, commands, uploads = failed[:9], failed[9:14], failed[14:]
    assert files == [False, True, True, False, True, True, False, False, True]
    assert commands == [False, True, False, False, True]
    assert uploads == [False, True, False, True]
    assert answer["results"][0]["structuredContent"]["bytes_written"] == 2
    for result in answer["results"]:
        if result.get("isError"):
            assert {"error", "error_category"} <= result["structuredContent"].keys()


def test_the_command_line_of_the_inspector_lists_and_calls(installed: Path, tmp_path: Path) -> None:
    command = stdio_command()
    home = {"HOME": str(tmp_path)}  # it writes settings there
    inspector = [str(installed / INSPECTOR), "--cli"]
    listed = node(installed, *inspector, *command, "--method", "tools/list", env=home)
    assert [tool["name"] for tool in listed["tools"]][5:7] == ["upload_file", "download_file"]
    called = node(
        installed,
        *inspector,
        *command,
        *("--method", "tools/call", "--tool-name", "upload_file"),
        *("--tool-arg", "path=/tmp/x", "content_base64=AP8="),
        env=home,
    )
    assert called["structuredContent"]["bytes_written"] == 2
