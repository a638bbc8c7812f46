"""What the pages tell people to type and to paste works as it stands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from tests.support.mcp_servers import http_server

from agent_sandbox import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md", *sorted((ROOT / "docs").rglob("*.md"))]


URL = "http://127.0.0.1:8000/mcp"
"""Where `agent-sandbox mcp --transport http` is, as its help says."""


def examples(language: str) -> list[pytest.ParameterSet]:
    found = []
    for page in PAGES:
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
        for number, block in enumerate(blocks, 1):
            found.append(pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}"))
    assert found
    return found


@pytest.mark.parametrize("source", examples("python"))
def test_a_python_example_runs_as_it_stands(source: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("source", examples("json"))
def test_a_json_example_is_json_and_a_client_configuration_starts_our_command(source: str) -> None:
    value = json.loads(source)
    for server in (value.get("mcpServers") or value.get("servers") or {}).values():
        if "url" in server:
            if server["url"] == URL:
                assert server in ({"url": URL}, {"type": "http", "url": URL})
                continue
            assert server["url"] == "https://mcp.example.com/mcp"
            # The token stands in the environment, not in a file that people share.
            assert re.fullmatch(r"Bearer \$\{\S+\}", server["headers"]["Authorization"])
            continue
        assert server["command"] == "/path/to/agent-sandbox"
        assert cli.build_parser().parse_args(server["args"]).command == "mcp"


@pytest.mark.parametrize("source", examples("sh"))
def test_a_shell_example_names_targets_and_arguments_that_exist(source: str) -> None:
    for line in source.replace("\\\n", " ").splitlines():
        command, *words = shlex.split(line, comments=True) or [""]
        if command == "make":
            done = subprocess.run(
                ["make", "-C", str(ROOT), "--dry-run", *words],
                capture_output=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, line
        elif command == "agent-sandbox":
            assert cli.build_parser().parse_args(words).command, line
        else:
            assert command in {"", "claude", "pip", "git", "cd"}, f"nothing tests: {line}"


@pytest.mark.parametrize(
    "source", [e for e in examples("bash") if f"MCP={URL}" in str(e.values[0])]
)
def test_the_recipe_for_curl_uploads_and_downloads_as_it_stands(source: str) -> None:
    with http_server() as server:
        assert source.count(URL) == 1
        done = subprocess.run(
            ["bash", "-eu", "-c", source.replace(URL, server.url)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
    sent, got = (json.loads(line)["result"] for line in done.stdout.splitlines())
    assert sent["structuredContent"]["bytes_written"] == 2
    assert got["structuredContent"]["content_base64"] == "AP8="


@pytest.mark.parametrize("page", ["docs/cli.md", "docs/zh/cli.md"])
def test_the_page_of_commands_names_every_command(page: str) -> None:
    named = set(re.findall(r"`(\w+)[^`]*`", (ROOT / page).read_text("utf-8")))
    assert {command.name for command in cli.COMMANDS} <= named


async def test_the_configuration_of_the_readme_gives_a_client_the_tools_that_the_docs_explain() -> (
    None
):
    (config, *_) = re.findall(r"```json\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    server = json.loads(config)["mcpServers"]["sandbox"]
    command = Path(sys.executable).parent / "agent-sandbox"
    handed = {k: v for k, v in os.environ.items() if k.startswith("AGENT_SANDBOX_")}
    parameters = StdioServerParameters(command=str(command), args=server["args"], env=handed)
    async with Client(parameters, read_timeout_seconds=30) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    for page in (ROOT / "docs" / "tools.md", ROOT / "docs" / "zh" / "tools.md"):
        text = page.read_text("utf-8")
        sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", text, re.M | re.S))
        assert set(sections) == set(tools)
        for tool, explained in sections.items():
            schema = tools[tool].input_schema
            named = [f"`{name}`" in explained for name in schema["properties"]]
            assert all(named), f"{page.name}: an argument of {tool} is not explained"
            (success, _failure) = (tools[tool].output_schema or {})["oneOf"]
            everywhere = {"success", "sandbox_id", "sandbox_created", "next_step"}
            fields = set(success["properties"]) - everywhere
            shown = set(re.findall(r"`(\w+)`", explained))
            assert fields <= shown | set(schema["properties"]), f"{page.name}: {tool}"


def test_the_demo_ends_with_equal_digests(tmp_path: Path) -> None:
    payload = tmp_path / "largest.bin"
    payload.write_bytes(os.urandom(1_048_576))
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / "demo.py"), str(payload)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1,048,576 bytes to /home/user/largest.bin" in done.stdout
    assert "all four agree: the bytes are the same." in done.stdout


@pytest.mark.parametrize("what", ["missing", "too large"])
def test_the_demo_refuses_what_does_not_fit_in_one_line(tmp_path: Path, what: str) -> None:
    payload = tmp_path / "payload"
    if what == "too large":
        payload.write_bytes(b"x" * 1_048_577)
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "examples" / "demo.py"), str(payload)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
