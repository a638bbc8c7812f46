"""`/metrics` of our server over HTTP: served where it was asked for, and to whom."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from tests.support.mcp_servers import WAIT_S, http_server

from agent_sandbox.mcp_server.auth.tokens import make_token
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.http import build_http_app
from agent_sandbox.mcp_server.transfers.settings import TransferSettings

TOLD = b"agent_sandbox_upload_bodies 0.0"


def get(server_url: str, path: str = "/metrics", **headers: str) -> httpx2.Response:
    """GET a path beside `/mcp`."""
    with httpx2.Client(trust_env=False, timeout=WAIT_S) as http:
        return http.get(server_url.removesuffix("/mcp") + path, headers=headers)


def test_metrics_that_nobody_asked_for_are_not_there() -> None:
    with http_server() as server:
        assert get(server.url).status_code == 404


def test_without_credentials_metrics_are_told_to_this_machine_by_its_own_name() -> None:
    with http_server(arguments=["--upload-metrics"]) as server:
        told = get(server.url)
        assert told.status_code == 200
        assert TOLD in told.content
        assert told.headers["cache-control"] == "no-store"
        elsewhere = get(server.url, host="attacker.example")
        assert (elsewhere.status_code, TOLD in elsewhere.content) == (421, False)


@pytest.mark.parametrize("shown", ["", "Basic YTpi", "Bearer asb_wrong"])
def test_where_credentials_are_asked_for_nearness_is_none(tmp_path: Path, shown: str) -> None:
    token = make_token("prometheus")
    (tmp_path / "tokens").write_text(f"{token.line}\n")
    options = ["--upload-metrics", "--token-file", str(tmp_path / "tokens")]
    with http_server(arguments=options) as server:
        refused = get(server.url, **({"authorization": shown} if shown else {}))
        assert (refused.status_code, TOLD in refused.content) == (401, False)
        told = get(server.url, authorization=f"Bearer {token.token}")
        assert (told.status_code, TOLD in told.content) == (200, True)


@pytest.mark.parametrize(("asked", "status"), [(True, 200), (False, 404)])
async def test_who_is_far_sees_metrics_with_a_token_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool, status: int
) -> None:
    monkeypatch.setenv("AGENT_SANDBOX_UPLOADS_DIR", str(tmp_path / "uploads"))
    token = make_token("prometheus")
    (tmp_path / "tokens").write_text(f"{token.line}\n")
    config = McpConfig(
        transfers=TransferSettings(metrics=True),
        token_file=tmp_path / "tokens" if asked else None,
    )
    app = build_http_app(config, "http://127.0.0.1:1")
    far = httpx2.ASGITransport(app, client=("192.0.2.7", 9))
    shown = {"authorization": f"Bearer {token.token}"}
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=far, base_url="http://127.0.0.1:1") as http,
    ):
        told = await http.get("/metrics", headers=shown)
    assert (told.status_code, TOLD in told.content) == (status, asked)
