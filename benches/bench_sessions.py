"""Many MCP sessions at once: no error, an event loop that answers, and nothing left at the end.

One HTTP server with its embedded service. While transfers run, a task in the server's loop sleeps
5 ms again and again and measures how late it is woken up. That is an absolute time, as issue 3
wants it, and grows with everything else that the machine does; the row after it counts only the
processor's time of each turn of the loop, and is what to look at on a busy machine.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx2
import psutil
from benches._harness import Row

from agent_sandbox.express.state import default_state_dir

SIZE_BYTES = 1_048_576
SESSIONS = 32
CLOSED_SESSIONS = 100
ROUNDS = 3
PATH = "/tmp/bench.bin"  # noqa: S108 - in the sandbox
WAIT_S = 120.0
LEFT_AFTER_S = 10.0
KEPT_CONNECTIONS = 20
"""Sockets between the server and its service that stay open for the next calls."""

_SERVER = """
import asyncio, json, signal, time
from asyncio import base_events
from agent_sandbox.mcp_server import app

late_ms, turn_ms = [], []

def begin(*_):
    late_ms.clear()
    turn_ms.clear()

signal.signal(signal.SIGUSR1, begin)
turn = base_events.BaseEventLoop._run_once

def timed_turn(loop):
    began = time.thread_time()
    turn(loop)
    turn_ms.append((time.thread_time() - began) * 1000)

base_events.BaseEventLoop._run_once = timed_turn

async def sample():
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 0.005
        await asyncio.sleep(0.005)
        late_ms.append((loop.time() - due) * 1000)

serve = app.serve_http

async def sampled(*arguments):
    sampler = asyncio.create_task(sample())
    try:
        await serve(*arguments)
    finally:
        sampler.cancel()
        print(json.dumps([late_ms, turn_ms]), flush=True)

app.serve_http = sampled
app.run_http(app.McpConfig(port=0))
"""


def rows() -> Iterator[Row]:
    """Measure transfers of many sessions, then the end of more."""
    with Server() as server:
        errors = asyncio.run(_transfer(server))
        late_ms, turn_ms = server.end()
    yield Row(f"{SESSIONS} sessions x 1 MiB up and down, failed calls", errors, 0, "calls")
    yield Row(f"{SESSIONS} sessions x 1 MiB, event loop late, p99", _p99(late_ms), 50, "ms")
    yield Row(f"{SESSIONS} sessions x 1 MiB, turn of the loop, p99", _p99(turn_ms), 20, "ms (CPU)")
    with Server() as server:
        left = asyncio.run(_close(server))
    yield Row(f"{CLOSED_SESSIONS} sessions closed, left after 10 s", left, 0, "processes, files")


def _p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


class Server:
    """An HTTP server process that samples its own event loop."""

    def __enter__(self) -> Server:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stderr is not None
        assert select.select([self.process.stderr], [], [], WAIT_S)[0], "it did not start"
        self.url = self.process.stderr.readline().decode().rpartition(" ")[2].strip()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()

    def begin(self) -> None:
        """Let it forget what it has measured so far."""
        self.process.send_signal(signal.SIGUSR1)

    def end(self) -> tuple[list[float], list[float]]:
        """End it, and return in milliseconds how late each sample was, and each turn's work."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.stdout is not None
        late_ms, turn_ms = json.loads(self.process.stdout.readline())
        return late_ms, turn_ms


class Session:
    """A session of 2025-11-25 over bare HTTP: the official client would be what is measured."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.sandbox_id = ""
        self._http = http
        self._url = url
        self._headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
        }

    async def open(self) -> None:
        """Say hello."""
        info = {"name": "bench", "version": "1"}
        answer = await self._post(
            "initialize",
            {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info},
        )
        self._headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        self._headers["mcp-protocol-version"] = "2025-11-25"

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool and return its fields."""
        return fields_of(await self.send(body_of(tool, **arguments)))

    async def send(self, body: bytes) -> bytes:
        """Send a request and return the answer as it came."""
        answer = await self._http.post(self._url, content=body, headers=self._headers)
        return answer.content

    async def close(self) -> None:
        """End the session."""
        await self._http.delete(self._url, headers=self._headers)

    async def _post(self, method: str, params: dict[str, Any]) -> httpx2.Response:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        body = json.dumps(message).encode()
        return await self._http.post(self._url, content=body, headers=self._headers)


async def _open(http: httpx2.AsyncClient, url: str, count: int) -> list[Session]:
    sessions = [Session(http, url) for _ in range(count)]
    slots = asyncio.Semaphore(8)

    async def ready(session: Session) -> None:
        async with slots:
            await session.open()
            session.sandbox_id = (await session.call("create_sandbox"))["sandbox_id"]

    await asyncio.gather(*map(ready, sessions))
    return sessions


async def _transfer(server: Server) -> int:
    """Send and fetch; what is sent is made before, and looked at after: only the server works."""
    datas = [os.urandom(SIZE_BYTES) for _ in range(SESSIONS)]
    uploads = [
        body_of("upload_file", path=PATH, content_base64=base64.b64encode(data).decode())
        for data in datas
    ]
    download = body_of("download_file", path=PATH)
    failed = 0
    async with _client(SESSIONS) as http:
        sessions = await _open(http, server.url, SESSIONS)
        await asyncio.sleep(1)
        server.begin()
        for _ in range(ROUNDS):
            pairs = zip(sessions, uploads, strict=True)
            sent = await asyncio.gather(*(one.send(body) for one, body in pairs))
            got = await asyncio.gather(*(session.send(download) for session in sessions))
            for data, up, down in zip(datas, sent, got, strict=True):
                digest = hashlib.sha256(data).hexdigest()
                failed += fields_of(up).get("sha256") != digest
                failed += base64.b64decode(fields_of(down).get("content_base64", "")) != data
    return failed


def body_of(tool: str, **arguments: Any) -> bytes:
    params = {"name": tool, "arguments": arguments}
    return json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    ).encode()


def fields_of(answer: bytes) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(answer)["result"]["structuredContent"]
    return fields


async def _close(server: Server) -> int:
    process = psutil.Process(server.process.pid)
    async with _client(8) as http:
        for session in await _open(http, server.url, 1):
            await session.close()
        await asyncio.sleep(1)
        before = _held(process)
        sessions = await _open(http, server.url, CLOSED_SESSIONS)
        for session in sessions:
            await session.close()
        await asyncio.sleep(LEFT_AFTER_S)
        more = _held(process) - before - KEPT_CONNECTIONS
    return max(0, more) + _directories([session.sandbox_id for session in sessions])


def _client(connections: int) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=connections)
    return httpx2.AsyncClient(trust_env=False, timeout=WAIT_S, limits=limits)


def _held(server: psutil.Process) -> int:
    """Count the processes below the server, and what its service holds open."""
    (service,) = server.children()
    return len(server.children(recursive=True)) + service.num_fds()


def _directories(sandbox_ids: list[str]) -> int:
    """Count the directories of these sandboxes; others on this machine have theirs beside them."""
    instances = default_state_dir() / "instances"
    return sum(bool(list(instances.glob(f"*/{sandbox_id}"))) for sandbox_id in sandbox_ids)
