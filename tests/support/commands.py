"""Commands in a sandbox, over the bare wire."""

from __future__ import annotations

import base64
import contextlib
import json
import struct
from collections.abc import Iterator
from typing import Any

import httpx2
from tests.support.express import Box

KILLS = {"agent-sandbox-on-disconnect": "kill"}
"""Makes a command a foreground one: it ends with its connection and holds its sandbox."""


def rpc(box: Box, name: str, headers: dict[str, str] | None = None, **message: Any) -> Any:
    """Call a unary RPC of the process service."""
    url = f"/process.Process/{name}"
    return box.http.post(url, json=message, headers=box.headers | (headers or {}))


@contextlib.contextmanager
def stream(
    box: Box, name: str, headers: dict[str, str] | None = None, **message: Any
) -> Iterator[Iterator[dict[str, Any]]]:
    """Call a streaming RPC; its connection stays open for the block.

    Yields the messages. This frame holds their generator on purpose: httpx2 closes the connection
    when the generator that reads from it is collected, as it is after `next(messages(answer))`.
    """
    body = json.dumps(message).encode()
    lines = box.headers | {"content-type": "application/connect+json"} | (headers or {})
    content = struct.pack(">BI", 0, len(body)) + body
    with box.http.stream(
        "POST", f"/process.Process/{name}", content=content, headers=lines
    ) as answer:
        said = _messages(answer)
        yield said


def _messages(answer: httpx2.Response) -> Iterator[dict[str, Any]]:
    buffer = bytearray()
    for chunk in answer.iter_raw():
        buffer += chunk
        while len(buffer) >= 5:
            _, length = struct.unpack_from(">BI", buffer)
            if len(buffer) < 5 + length:
                break
            yield json.loads(bytes(buffer[5 : 5 + length]))
            del buffer[: 5 + length]


def shell(line: str, **more: Any) -> dict[str, Any]:
    """Return the message that starts a shell with a line."""
    return {"process": {"cmd": "/bin/sh", "args": ["-c", line]} | more, "stdin": False}


def run(box: Box, line: str, headers: dict[str, str] | None = None) -> tuple[bytes, dict[str, Any]]:
    """Run a line and return its standard output and the last message."""
    out = b""
    last: dict[str, Any] = {}
    with stream(box, "Start", headers, **shell(line)) as said:
        for last in said:
            out += base64.b64decode(last.get("event", {}).get("data", {}).get("stdout", ""))
            if "end" in last.get("event", {}):
                return out, last["event"]["end"]
    return out, last
