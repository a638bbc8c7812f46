"""MCP calls of 1 MiB against a bare `MCPServer` tool, and memory over 200 uploads.

Both servers are processes of their own, asked by turns by the same official client over the same
transport. Ours also writes to and reads from a real sandbox of the embedded service.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benches._harness import Row, interleaved
from mcp import Client
from mcp.client.stdio import StdioServerParameters

SIZE_BYTES = 1_048_576
PATH = "/tmp/bench.bin"  # noqa: S108 - in the sandbox
ROUNDS = 60
WAIT_S = 60.0

OURS = [sys.executable, "-m", "agent_sandbox", "mcp"]
BARE = [sys.executable, str(Path(__file__).parent / "_bare_mcp.py")]


def rows() -> Iterator[Row]:
    """Measure both directions over both transports, then memory."""
    encoded = base64.b64encode(os.urandom(SIZE_BYTES)).decode()
    for transport in ("STDIO", "HTTP"):
        with Session(transport, OURS) as ours, Session(transport, BARE) as bare:
            upload = interleaved(
                ours.calls("upload_file", path=PATH, content_base64=encoded),
                bare.calls("upload", path=PATH, content_base64=encoded),
                rounds=ROUNDS,
            )
            yield Row(f"MCP upload of 1 MiB, {transport}", upload, 1.6, "x bare tool")
            download = interleaved(
                ours.calls("download_file", path=PATH),
                bare.calls("download", path=PATH),
                rounds=ROUNDS,
            )
            yield Row(f"MCP download of 1 MiB, {transport}", download, 1.6, "x bare tool")
    with Session("HTTP", OURS) as ours:
        upload_once = ours.calls("upload_file", path=PATH, content_base64=encoded)
        resident = [ours.resident_mib() for _ in range(200) if upload_once() is None]
        growth = max(resident[10:]) - resident[9]
    yield Row("200 MCP uploads of 1 MiB, growth after the tenth", growth, 8.0, "MiB")


class Session:
    """A server process and a connected client, driven from synchronous code."""

    def __init__(self, transport: str, command: list[str]) -> None:
        self._transport = transport
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        self._runner = asyncio.Runner()

    def __enter__(self) -> Session:
        self._stack.enter_context(self._runner)
        if self._transport == "STDIO":
            more = ["stdio"] if self._command is BARE else []
            self._connect(
                StdioServerParameters(command=self._command[0], args=[*self._command[1:], *more])
            )
        else:
            more = ["http"] if self._command is BARE else ["--transport", "http", "--port", "0"]
            self._process = subprocess.Popen([*self._command, *more], stderr=subprocess.PIPE)
            self._stack.callback(_end, self._process)
            self._connect(_url(self._process))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def calls(self, tool: str, **arguments: Any) -> Callable[[], None]:
        """Return a function that calls the tool once and waits for its success."""

        async def call() -> None:
            result = await self._client.call_tool(tool, arguments)
            assert not result.is_error, result

        return lambda: self._runner.run(call())

    def resident_mib(self) -> float:
        """Return the resident memory of the server."""
        assert self._process is not None
        for line in Path(f"/proc/{self._process.pid}/status").read_text("ascii").splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise LookupError(self._process.pid)

    def _connect(self, target: StdioServerParameters | str) -> None:
        # The client's streams belong to the task that opened them: it lives until the end.
        ready = asyncio.Event()
        leave = asyncio.Event()

        async def hold() -> None:
            async with Client(target, mode="legacy", read_timeout_seconds=WAIT_S) as self._client:
                ready.set()
                await leave.wait()

        async def start() -> asyncio.Task[None]:
            task = asyncio.create_task(hold())
            opened = asyncio.create_task(ready.wait())
            await asyncio.wait({task, opened}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task

        async def end(task: asyncio.Task[None]) -> None:
            leave.set()
            await task

        held = self._runner.run(start())
        self._stack.callback(lambda: self._runner.run(end(held)))


def _url(process: subprocess.Popen[bytes]) -> str:
    """Return the URL that a server prints, once it accepts connections there."""
    assert process.stderr is not None
    assert select.select([process.stderr], [], [], WAIT_S)[0], "it did not start"
    url = process.stderr.readline().decode().rpartition(" ")[2].strip()
    host, port = url.removeprefix("http://").partition("/")[0].split(":")
    end = time.monotonic() + WAIT_S
    while True:  # the bare server prints before it listens
        with (
            contextlib.suppress(ConnectionRefusedError),
            socket.create_connection((host, int(port))),
        ):
            return url
        assert time.monotonic() < end, "it does not listen"
        time.sleep(0.05)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(WAIT_S)
    if process.stderr is not None:
        process.stderr.close()
