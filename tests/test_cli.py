"""The command line: one helpful line for every mistake, never a traceback."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import pytest

import agent_sandbox
from agent_sandbox import cli
from agent_sandbox.errors import EXIT_STATUS, TABLE, AgentSandboxError, Base64Error, SizeLimitError
from agent_sandbox.mcp_server.auth.tokens import StaticTokens

ROOT = Path(__file__).resolve().parents[1]

MISTAKES = [
    ([], "say what to do: mcp, serve, create, put or another command (see: agent-sandbox --help)"),
    (["nonsense"], "invalid choice: 'nonsense'"),
    (["--nonsense"], "(see: agent-sandbox --help)"),
    (["mcp", "extra"], "unrecognized arguments: extra (see: agent-sandbox mcp --help)"),
    (["list", "--all"], "unrecognized arguments: --all (see: agent-sandbox list --help)"),
    (["--all", "list"], "unrecognized arguments: --all (see: agent-sandbox --help)"),
    (["mcp", "--transport"], "expected one argument (see: agent-sandbox mcp --help)"),
    (["mcp", "--transport", "sse"], "invalid choice: 'sse'"),
    (["mcp", "--trans", "http"], "unrecognized arguments: --trans http"),
    (["mcp", "--port", "8000"], "--port needs --transport http"),
    (["mcp", "--port", "0"], "--port needs --transport http"),
    (["mcp", "--host", "127.0.0.1"], "--host needs --transport http"),
    (["mcp", "--insecure"], "--insecure needs --transport http"),
    (["mcp", "--transport", "http", "--upload-port", "0"], "--upload-port needs --transport stdio"),
    (["mcp", "--transport", "http", "--upload-host", "::1"], "--upload-host needs --transport st"),
    (["mcp", "--allowed-host", "a"], "--allowed-host needs --transport http"),
    (["mcp", "--transport", "http", "--port", "65536"], "a whole number from 0 to 65535"),
    (["mcp", "--transport", "http", "--port", "-1"], "argument --port"),
    (["mcp", "--transport", "http", "--port", "9" * 5000], "a whole number from 0 to 65535"),
    (["mcp", "--transport", "http", "--port", "\u0661"], "a whole number from 0 to 65535"),
    (["mcp", "--transport", "http", "--host", ""], "a host is a name or an address"),
    (["mcp", "--transport", "http", "--host", "http://a"], "a host is a name or an address"),
    (["mcp", "--transport", "http", "--host", "0.0.0.0"], "or say --insecure"),
    (["mcp", "--transport", "http", "--host", "::"], "or say --insecure"),
    (["mcp", "--transport", "http", "--host", "example.com"], "or say --insecure"),
    (["mcp", "--token-file", "x"], "--token-file needs --transport http"),
    (["mcp", "--oauth-scope", "x"], "--oauth-scope needs --transport http"),
    (["mcp", "--transport", "http", "--token-file", "/nothing"], "(--token-file or AGENT"),
    (
        ["mcp", "--transport", "http", "--oauth-issuer", "https://a.example"],
        "OAuth needs --oauth-resource, too",
    ),
    (
        [
            "mcp",
            "--transport",
            "http",
            "--oauth-issuer",
            "http://a.example",
            "--oauth-jwks-url",
            "https://a.example/k",
            "--oauth-resource",
            "https://b.example/mcp",
        ],
        "The issuer must be an https URL",
    ),
    (["ls", "ie3fr:../a"], "one without / in front begins in /home/user"),
    (["cp", "a", "ie3fr:/a/../b"], "a path in a sandbox has no `..`"),
    (["cp", "ie3fr:/a/", "."], "a file's does not end in /"),
    (["cp", "ie3fr:" + "a" * 256, "."], "at most 255 bytes in a name"),
    (["run", "--cwd", "../a", "ie3fr", "--", "true"], "a path in a sandbox has no `..`"),
    (["token"], "the following arguments are required"),
    (["token", "old", "x"], "invalid choice: 'old'"),
    (["token", "new", "x\ny"], "A token's name is 1 to 64 printable characters."),
    (["mcp", "--ttl", "0"], "a whole number of seconds from 1 to 86400"),
    (["mcp", "--ttl", "-5"], "argument --ttl"),
    (["mcp", "--ttl", "86401"], "a whole number of seconds from 1 to 86400"),
    (["mcp", "--ttl", "1.5"], "a whole number of seconds from 1 to 86400"),
    (["mcp", "--provider", "cloud"], "invalid choice: 'cloud'"),
    (
        ["serve", "--host", "0.0.0.0", "--port", "0"],
        "0.0.0.0 is open to others: give --api-key-file, or say --insecure",
    ),
    (["serve", "--host", "no-such-host.invalid"], "no-such-host.invalid was not found"),
    (["serve", "--host", "192.0.2.1"], "192.0.2.1 is no address of this machine"),
    (["serve", "--api-key-file", "/dev/null"], "holds no key. (see: agent-sandbox serve --help)"),
    (["serve", "--domain", "https://a"], "a domain is a name"),
    (["serve", "--domain", "a-.b"], "a domain is a name"),
    (["serve", "--drain-seconds", "-1"], "argument --drain-seconds"),
    (["serve", "--drain-seconds", "3601"], "a whole number of seconds from 0 to 3600"),
    (["serve", "--log-format", "xml"], "invalid choice: 'xml'"),
    (["mcp", "--uploads-database", "postgresql://a:b@h/d"], "others can read arguments"),
    (["mcp", "--uploads-database", "mysql://h/d"], "must be a postgresql:// address"),
    (["mcp", "--uploads-bucket", "b"], "say in which directory the rest"),
    (["mcp", "--uploads-s3-region", "r"], "needs a bucket"),
    (["mcp", "--upload-url", "files.example.com"], "must be a http or https address"),
    (["mcp", "--upload-max-bytes", "-1"], "argument --upload-max-bytes"),
    (["mcp", "--upload-extension", "csv"], "an extension starts with a dot"),
    (["put", "file"], "the following arguments are required: URL"),
    (["serve", "--port", "http"], "a whole number from 0 to 65535"),
    (["serve", "--transport", "http"], "unrecognized arguments"),
    (["a\nb\x1b[31m\u202e"], "invalid choice"),
]


def command(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agent_sandbox", *arguments],
        env={**os.environ, **extra},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(("arguments", "says"), MISTAKES)
def test_wrong_arguments_get_one_helpful_line_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("agent-sandbox: ")
    assert err.count("\n") == 1
    assert err.endswith("--help)\n")
    assert says in err
    assert err[:-1].isprintable()


def test_the_same_holds_for_the_real_process() -> None:
    done = command("mcp", "--port", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "agent-sandbox: argument --port: a port is a whole number from 0 to 65535"
        " (see: agent-sandbox mcp --help)\n"
    )


@pytest.mark.parametrize("arguments", [["--help"], *([c.name, "--help"] for c in cli.COMMANDS)])
def test_help_gives_examples_and_next_steps_on_stdout(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "examples:" in out or "next steps:" in out
    assert f"agent-sandbox {arguments[0].removeprefix('--help')}" in out


def test_there_is_one_version_in_every_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    shown = capsys.readouterr().out
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    crate = tomllib.loads((ROOT / "Cargo.toml").read_text("utf-8"))["package"]
    assert shown == f"agent-sandbox {project['version']}\n"
    assert project["version"] == crate["version"] == agent_sandbox.__version__


def test_help_and_mistakes_load_no_library() -> None:
    heavy = ["pydantic", "mcp", "httpx2", "starlette", "uvicorn", "anyio", "asyncio", "rich"]
    probe = (
        "import sys\nfrom agent_sandbox.cli import main\n"
        "assert main(['mcp', '--port', '1']) == 2\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("cls", list(TABLE))
def test_an_error_of_ours_ends_with_its_text_and_the_status_of_its_category(
    cls: type[AgentSandboxError],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> None:
        raise cls(7) if issubclass(cls, Base64Error | SizeLimitError) else cls()

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["serve"]) == EXIT_STATUS[cls.category]
    assert capsys.readouterr().err == f"agent-sandbox: {cls.text}\n"


def test_an_unexpected_error_shows_its_kind_and_none_of_its_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("token=s3cret")

    monkeypatch.delenv("AGENT_SANDBOX_DEBUG", raising=False)
    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["serve"]) == 1
    err = capsys.readouterr().err
    assert "an unexpected RuntimeError stopped it" in err
    assert "s3cret" not in err
    assert err.count("\n") == 1


def test_an_interrupt_ends_quietly_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupt)
    assert cli.main(["serve"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "service", [["serve", "--state-dir", "STATE"], ["mcp", "--transport", "http"]], ids=str
)
def test_a_port_that_is_taken_is_one_line(service: list[str], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [str(tmp_path) if word == "STATE" else word for word in service]
        done = command(*words, "--port", port)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"127.0.0.1:{port} is in use: choose another --port" in done.stderr
    assert done.stderr.endswith(f"(see: agent-sandbox {service[0]} --help)\n")


@pytest.mark.parametrize(
    ("arguments", "extra", "says"),
    [
        ((), {"AGENT_SANDBOX_PROVIDER": "x"}, "The provider is one of: local,"),
        (("--isolation", "none"), {"AGENT_SANDBOX_API_URL": "http://a"}, "the other service runs"),
        (("--allow-network",), {"AGENT_SANDBOX_API_URL": "http://a"}, "the other service runs"),
    ],
)
def test_settings_of_mcp_that_cannot_work_are_one_line_that_names_its_help(
    arguments: tuple[str, ...], extra: dict[str, str], says: str
) -> None:
    done = command("mcp", *arguments, **extra)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.endswith(" (see: agent-sandbox mcp --help)\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "nobody.invalid"])
def test_mcp_says_at_its_start_that_nobody_answers_where_the_service_should_be(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = command("mcp", AGENT_SANDBOX_API_URL=f"http://{host}:{port}")
    assert (done.returncode, done.stdout) == (0, "")
    assert f"nobody answers at {host}:{port}" in done.stderr
    assert "AGENT_SANDBOX_API_URL" in done.stderr


def test_mcp_on_a_terminal_tells_a_person_what_it_is() -> None:
    keyboard, terminal = os.openpty()
    try:
        os.write(keyboard, b"\x04")  # Ctrl-D
        done = subprocess.run(
            [sys.executable, "-m", "agent_sandbox", "mcp"],
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert (done.returncode, done.stdout) == (0, "")
    assert "this is an MCP server" in done.stderr
    assert "--transport http" in done.stderr


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("asked", [True, False], ids=["after-an-answer", "at-once"])
def test_serve_says_where_it_listens_and_ends_quietly_on_a_signal(
    tmp_path: Path, signum: signal.Signals, asked: bool
) -> None:
    serve = [sys.executable, "-m", "agent_sandbox", "serve", "--port", "0"]
    with subprocess.Popen(
        [*serve, "--state-dir", str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 30)[0], "it says nothing"
        first = process.stdout.readline()
        if asked:
            with urllib.request.urlopen(f"{first.strip()}/health", timeout=30) as answer:  # noqa: S310 - its own URL
                assert answer.status == 204
        process.send_signal(signum)
        rest = process.communicate(timeout=30)[1]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+\n", first)
    assert "Traceback" not in rest
    assert process.returncode == 0


def test_a_new_token_is_printed_once_with_the_line_that_lets_it_in() -> None:
    done = command("token", "new", "my laptop")
    assert (done.returncode, done.stderr) == (0, "")
    _, token, _, line = (text.strip() for text in done.stdout.splitlines())
    assert StaticTokens(None, line).find(token) == line.split()[0]
    assert line.endswith(" my laptop")
    made = json.loads(command("token", "new", "x", "--json").stdout)
    assert StaticTokens(None, made["line"]).find(made["token"]) == made["id"]
