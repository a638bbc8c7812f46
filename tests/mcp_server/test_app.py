"""The blocking entry points."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.mcp_servers import environment

from agent_sandbox.client.settings import Settings
from agent_sandbox.errors import ConfigError
from agent_sandbox.loopback import is_loopback
from agent_sandbox.mcp_server import app
from agent_sandbox.mcp_server.app import run_http, run_stdio
from agent_sandbox.mcp_server.auth.settings import OAuthConfig
from agent_sandbox.mcp_server.auth.tokens import make_token
from agent_sandbox.mcp_server.config import McpConfig


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com"])
def test_an_address_that_others_reach_is_refused_without_credentials(host: str) -> None:
    with pytest.raises(ConfigError):
        run_http(McpConfig(host=host, port=0))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.com"])
def test_with_credentials_any_address_will_do(host: str, tmp_path: Path) -> None:
    made = make_token("one")
    (tmp_path / "tokens").write_text(made.line)
    McpConfig(host=host, token_file=tmp_path / "tokens").check_exposure()
    oauth = OAuthConfig(
        issuer="https://a.example",
        jwks_url="https://a.example/keys",
        resource="https://b.example/mcp",
    )
    McpConfig(host=host, oauth=oauth).check_exposure()
    McpConfig(host=host, insecure=True).check_exposure()
    (tmp_path / "tokens").write_text("")
    for config in (McpConfig(host=host), McpConfig(host=host, token_file=tmp_path / "tokens")):
        with pytest.raises(ConfigError):
            config.check_exposure()


def test_credentials_that_cannot_be_used_are_refused_on_loopback_too(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        run_http(McpConfig(port=0, token_file=tmp_path / "nothing"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_a_loopback_address_is_ours_alone(host: str) -> None:
    assert is_loopback(host)
    McpConfig(host=host).check_exposure()


def test_settings_that_contradict_each_other_are_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AGENT_SANDBOX_API_URL", raising=False)
    for run in (run_http, run_stdio):
        with pytest.raises(ConfigError):
            run(McpConfig(provider="express", port=0))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ttl_seconds": 0},
        {"ttl_seconds": 86_401},
        {"port": -1},
        {"port": 65_536},
        {"idle_timeout_s": 0},
        {"body_deadline_s": float("nan")},
        {"transfer_timeout_s": float("inf")},
    ],
)
def test_a_setting_out_of_range_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        McpConfig(**wrong)  # type: ignore[arg-type]


def test_the_key_is_in_no_repr() -> None:
    assert "secret" not in repr(McpConfig(api_key="secret"))


def test_a_port_in_use_is_named_with_the_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as failed:
            run_http(McpConfig(port=port))
    assert f"127.0.0.1:{port} is in use" in failed.value.__dict__["reason"]


def test_the_module_is_a_stdio_server_that_ends_with_its_input() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "agent_sandbox.mcp_server"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment(),
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_stdio_server_cleans_up_and_ends_before_the_official_client_kills_it() -> None:
    assert app.STDIO_CLEANUP_S < app.STDIO_EXIT_S < 2


@pytest.mark.parametrize("left", [frozenset(), frozenset({"x"})])
@pytest.mark.parametrize("provider", ["local", "express"])
def test_a_hard_exit_hands_over_what_another_service_still_has(
    monkeypatch: pytest.MonkeyPatch, provider: str, left: frozenset[str]
) -> None:
    done: list[object] = []
    monkeypatch.setattr(app, "hand_off", lambda _settings, ids: done.append(ids))
    monkeypatch.setattr("os._exit", done.append)
    url = "http://127.0.0.1:9" if provider == "express" else None
    registry = SimpleNamespace(reaper=SimpleNamespace(recorded=left))
    app._exit_hard(Settings(provider=provider, api_url=url), registry)  # type: ignore[arg-type]
    assert done == ([left, 0] if left and provider == "express" else [0])
