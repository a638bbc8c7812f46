"""Real MCP servers for tests: a process on STDIO or on a port, and the official client for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from tests.support.relay import Relay, relay_to

ERAS = ("2025-11-25", "2026-07-28")
TRANSPORTS = ("stdio", "http")
WAIT_S = 30.0
"""Longest wait of a test for anything: a test that hangs fails here."""

_START = "import json, sys; from agent_sandbox.mcp_server.app import McpConfig, run_{}; run_{}(McpConfig(**json.loads(sys.argv[1])))"  # noqa: E501 - one line of Python


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return this environment without settings of ours, with warnings as errors, plus `more`.

    Output is buffered as it is for people, whatever the tests themselves run with.
    """
    ours = ("AGENT_SANDBOX_", "E2B_", "PYTHONUNBUFFERED")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    if os.environ.get("AGENT_SANDBOX_PURE_PYTHON"):
        kept["AGENT_SANDBOX_PURE_PYTHON"] = os.environ["AGENT_SANDBOX_PURE_PYTHON"]
    return kept | {"PYTHONWARNINGS": "error"} | dict(more or {})


def stdio_command(config: Mapping[str, Any] | None = None) -> list[str]:
    """Return the command of a STDIO server: the public one, or one with further settings."""
    if config is None:
        return [sys.executable, "-m", "agent_sandbox", "mcp"]
    return [sys.executable, "-c", _START.format("stdio", "stdio"), json.dumps(dict(config))]


@asynccontextmanager
async def connected(
    target: str | list[str],
    era: str,
    *,
    errors: Any = None,
    env: Mapping[str, str] | None = None,
    token: str | None = None,
    auth: httpx2.Auth | None = None,
) -> AsyncIterator[Client]:
    """Connect the official client to a URL, or to the process of a command."""
    if token is not None or auth is not None:
        assert isinstance(target, str)
        headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        async with (
            httpx2.AsyncClient(trust_env=False, timeout=WAIT_S, headers=headers, auth=auth) as http,
            _client(streamable_http_client(target, http_client=http), era) as client,
        ):
            yield client
        return
    server: Any = target
    if isinstance(target, list):
        parameters = StdioServerParameters(command=target[0], args=target[1:], env=environment(env))
        server = stdio_client(parameters, errlog=errors or sys.stderr)
    async with _client(server, era) as client:
        yield client


@asynccontextmanager
async def _client(server: Any, era: str) -> AsyncIterator[Client]:
    mode: dict[str, Any] = {"mode": "legacy"} if era == ERAS[0] else {}
    async with Client(server, read_timeout_seconds=WAIT_S, **mode) as client:
        assert client.protocol_version == era
        yield client


def request(request_id: Any, method: str, **params: Any) -> bytes:
    """Return one JSON-RPC request as bytes."""
    message = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
    return json.dumps(message).encode()


def initialize(request_id: Any) -> bytes:
    """Return the request that opens a session up to 2025-11-25."""
    client = {"name": "raw", "version": "1"}
    return request(
        request_id, "initialize", protocolVersion=ERAS[0], capabilities={}, clientInfo=client
    )


def tool_call(request_id: Any, tool: str, **arguments: Any) -> bytes:
    """Return a tool call of the era up to 2025-11-25."""
    return request(request_id, "tools/call", name=tool, arguments=arguments)


def modern_call(request_id: Any, tool: str, **arguments: Any) -> bytes:
    """Return a tool call of 2026-07-28."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": ERAS[1],
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return request(request_id, "tools/call", name=tool, arguments=arguments, _meta=meta)


def modern_headers(tool: str, method: str = "tools/call") -> dict[str, str]:
    """Return the headers that go with `modern_call`."""
    return {"mcp-protocol-version": ERAS[1], "mcp-method": method, "mcp-name": tool}


class RawHttp:
    """An HTTP client that sends what the official one would not."""

    headers: ClassVar = {"accept": "application/json, text/event-stream"}

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.http = http
        self.url = url
        self.session: dict[str, str] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, token: str | None = None) -> AsyncIterator[Self]:
        """Open it; the session, if there is one, is not ended."""
        headers = {"authorization": f"Bearer {token}"} if token is not None else {}
        async with httpx2.AsyncClient(trust_env=False, timeout=WAIT_S, headers=headers) as http:
            yield cls(http, url)

    async def post(self, body: bytes, **headers: str) -> httpx2.Response:
        """Send a body; `_` in names of headers stands for `-`."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        given = {"content-type": "application/json", **self.headers, **self.session, **more}
        return await self.http.post(self.url, content=body, headers=given)

    async def initialize(self) -> None:
        """Open a session up to 2025-11-25."""
        answer = await self.post(initialize(0))
        assert answer.status_code == 200, answer.text
        self.session = {
            "mcp-session-id": answer.headers["mcp-session-id"],
            "mcp-protocol-version": ERAS[0],
        }
        told = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
        assert (await self.post(told)).status_code == 202

    async def call(self, request_id: Any, tool: str, **arguments: Any) -> Any:
        """Call a tool and return the JSON-RPC answer."""
        return (await self.post(tool_call(request_id, tool, **arguments))).json()


@dataclass
class HttpServer:
    """A running HTTP server."""

    process: subprocess.Popen[bytes]
    url: str
    _lines: list[bytes] = field(default_factory=list)
    _reader: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").partition("/")[0].rpartition(":")
        return host, int(port)

    def follow(self) -> None:
        """Collect what it prints, so that it never waits for us."""
        assert self.process.stderr is not None
        self._reader = threading.Thread(target=self._lines.extend, args=(self.process.stderr,))
        self._reader.start()

    def end(self, how: signal.Signals = signal.SIGTERM) -> str:
        """End it, and return what it printed after its URL."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(how)
        self.process.wait(WAIT_S)
        assert self._reader is not None
        self._reader.join(WAIT_S)
        return b"".join(self._lines).decode()


@contextmanager
def http_server(
    config: Mapping[str, Any] | None = None,
    *,
    env: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    program: Sequence[str] = ("-m", "agent_sandbox"),
) -> Iterator[HttpServer]:
    """Run an HTTP server on a free port of loopback."""
    command = [sys.executable, *program, "mcp", "--transport", "http", "--port", "0", *arguments]
    if config is not None:
        settings = {"port": 0, **config}
        command = [sys.executable, "-c", _START.format("http", "http"), json.dumps(settings)]
    uploads = tempfile.TemporaryDirectory(prefix="uploads-")  # quotas of its own
    own = {"AGENT_SANDBOX_UPLOADS_DIR": uploads.name, **(env or {})}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environment(own))
    assert process.stderr is not None
    try:
        assert select.select([process.stderr], [], [], WAIT_S)[0], "it did not start in time"
        line = process.stderr.readline().decode()
        assert "http://" in line, line + process.stderr.read().decode()
        server = HttpServer(process, line[line.index("http://") :].strip())
        server.follow()
        try:
            yield server
        finally:
            server.end()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
        uploads.cleanup()


@asynccontextmanager
async def relayed_http(
    express_url: str,
    config: Mapping[str, Any] | None = None,
    *,
    arguments: Sequence[str] = (),
    quiet: bool = True,
) -> AsyncIterator[tuple[HttpServer, Relay]]:
    """Run an HTTP server whose requests to the sandbox service can be held.

    It must have printed nothing at its end, unless `quiet` is off.
    """
    async with relay_to(express_url) as relay:
        env = {"AGENT_SANDBOX_API_URL": relay.url, "AGENT_SANDBOX_URL": relay.url}
        with http_server(config, env=env, arguments=arguments) as server:
            try:
                yield server, relay
            finally:
                relay.release()
                # In a thread: what the server destroys at its end goes through the relay.
                printed = await asyncio.to_thread(server.end)
            assert printed == "" or not quiet
