"""No token is in any log, at any level, in any form; nor in the list of processes."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from tests.support.express import Service
from tests.support.issuer import running_issuer
from tests.support.mcp_servers import (
    ERAS,
    RawHttp,
    connected,
    http_server,
    initialize,
    request,
)

from agent_sandbox.mcp_server.auth.tokens import make_token

LOUD = """
import logging, sys
logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
from agent_sandbox.mcp_server import app, logs
logs.log_to_stderr(logging.DEBUG)
app.log_to_stderr = lambda: None
from agent_sandbox.cli import main
sys.exit(main(sys.argv[1:]))
"""
"""The same command, with every logger that can speak made to."""


def forms(secret: str) -> set[str]:
    """Return how a secret could stand in a log."""
    data = secret.encode()
    return {
        secret,
        quote(secret, safe=""),
        data.hex(),
        base64.b64encode(data).decode().rstrip("=")[:-1],
        base64.urlsafe_b64encode(data).decode().rstrip("=")[:-1],
    }


async def test_no_log_and_no_argument_holds_a_token(express: Service, tmp_path: Path) -> None:
    static, stranger = make_token("one"), make_token("stranger")
    tokens, denied = tmp_path / "tokens", tmp_path / "denied"
    tokens.write_text(static.line)
    denied.write_text("jti canary-jti\n")
    with running_issuer() as issuer:
        shown: dict[str, str] = {
            "static": static.token,
            "stranger": stranger.token,
            "good": issuer.token(sub="canary-subject", client_id="canary-client"),
            "denied": issuer.token(jti="canary-jti"),
            "expired": issuer.token(exp=1),
            "no scope": issuer.token(scope="canary-scope"),
            "no key": issuer.token(header={"kid": "canary-kid"}),
            "malformed": "canary-token!\u00e9",
        }
        arguments = issuer.arguments(f"--token-file={tokens}", f"--oauth-deny-file={denied}")
        env = {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}
        with http_server(env=env, arguments=arguments, program=("-c", LOUD)) as server:
            sessions = await _use(server.url, shown)
            tokens.write_text("# nobody\n")
            async with RawHttp.open(server.url, static.token) as raw:
                assert (await raw.post(initialize(1))).status_code == 401
            written = psutil.Process(server.process.pid).cmdline()
            written += [server.end(), express.log()]
    secrets = {
        part
        for token in shown.values()
        for part in (token, token.rpartition(".")[2][-43:])  # what is secret in it
    }
    text = "\n".join(written)
    assert "DEBUG" in text
    assert [form for secret in secrets for form in forms(secret) if form in text] == []
    assert [canary for canary in ("canary-", *sessions) if canary in text] == []


async def _use(url: str, shown: dict[str, str]) -> list[str]:
    """Show every token in both eras, and two at once; return the ids of sessions."""
    sessions: list[str] = []
    for name, token in shown.items():
        async with RawHttp.open(url) as raw:
            value: Any = f"Bearer {token}".encode()
            raw.headers = {**raw.headers, "authorization": value}  # type: ignore[misc] # its own
            answer = await raw.post(initialize(1))
            good = name in ("static", "good")
            assert answer.status_code == (200 if good else 403 if name == "no scope" else 401)
            headers = [("authorization", value), ("authorization", value)]
            twice = await raw.http.post(url, content=initialize(1), headers=headers)
            assert twice.status_code == 400
            if good:
                sessions.append(answer.headers["mcp-session-id"])
                raw.session = {"mcp-session-id": sessions[-1], "mcp-protocol-version": ERAS[0]}
                assert (await raw.post(request(2, "ping"))).status_code == 200
    async with RawHttp.open(url, shown["good"]) as other:
        other.session = {"mcp-session-id": sessions[0], "mcp-protocol-version": ERAS[0]}
        assert (await other.post(request(2, "ping"))).status_code == 404
    for era in ERAS:
        async with connected(url, era, token=shown["good"]) as client:
            made = await client.call_tool("write_file", {"path": "/tmp/x", "content": "x"})
            assert json.loads(made.model_dump_json())["structured_content"]["success"]
    return sessions
