"""`make demo`: a real MCP session over STDIO, with the official client.

It starts `agent-sandbox mcp` as a client program would, uploads a file of this repository into a
sandbox, lists it, downloads it again, and compares the digests that the server computed with ones
that it computes itself.

    python docs/examples/demo.py [FILE]
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from agent_sandbox.bytestream import IMPLEMENTATION

MAX_FILE_BYTES = 1_048_576
ROOT = Path(__file__).resolve().parents[2]


class ToolFailedError(Exception):
    """A tool answered with an error."""


def step(text: str) -> None:
    """Print one line of progress."""
    print(f"  {text}", flush=True)


async def call(client: Client, tool: str, **arguments: Any) -> tuple[dict[str, Any], float]:
    """Call a tool and return its result and the milliseconds it took; raise if it failed."""
    began = time.perf_counter()
    answer = await client.call_tool(tool, arguments)
    took_ms = (time.perf_counter() - began) * 1000
    result = answer.structured_content or {}
    if answer.is_error:
        print(f"  {tool} failed: {json.dumps(result)}", file=sys.stderr)
        raise ToolFailedError
    return result, took_ms


async def demo(name: str, data: bytes) -> bool:
    """Run the session and tell whether every digest agreed."""
    digest = hashlib.sha256(data).hexdigest()
    remote = f"/home/user/{name}"
    print(f"\nagent_sandbox demo: {name}, {len(data):,} bytes, there and back\n")

    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "agent_sandbox", "mcp"],
        # The client hands only a few variables on by itself.
        env={
            name: value for name, value in os.environ.items() if name.startswith("AGENT_SANDBOX_")
        },
    )
    step("starting `agent-sandbox mcp` and connecting over STDIO ...")
    began = time.perf_counter()
    async with Client(server) as client:
        took_ms = (time.perf_counter() - began) * 1000
        tools = await client.list_tools()
        step(f"byte core: {IMPLEMENTATION}")
        step(f"connected in {took_ms:.0f} ms, protocol {client.protocol_version},"
             f" {len(tools.tools)} tools")  # fmt: skip

        sandbox, took_ms = await call(client, "create_sandbox")
        step(f"create_sandbox   {took_ms:7.1f} ms   {sandbox['sandbox_id']}")

        encoded = base64.b64encode(data).decode()
        sent, took_ms = await call(client, "upload_file", path=remote, content_base64=encoded)
        step(f"upload_file      {took_ms:7.1f} ms   {sent['bytes_written']:,} bytes to {remote}")

        listing, took_ms = await call(client, "list_files", path="/home/user")
        shown = ", ".join(entry["name"] for entry in listing["entries"])
        step(f"list_files       {took_ms:7.1f} ms   {shown}")

        got, took_ms = await call(client, "download_file", path=remote)
        back = base64.b64decode(got["content_base64"], validate=True)
        step(f"download_file    {took_ms:7.1f} ms   {got['bytes_read']:,} bytes")
        step("closing the session; the server destroys the sandbox ...")

    digests = {
        "file on this disk": digest,
        "upload_file said": sent["sha256"],
        "download_file said": got["sha256"],
        "bytes that came back": hashlib.sha256(back).hexdigest(),
    }
    print("\n  sha256")
    for what, value in digests.items():
        print(f"    {what:22} {value}")
    agree = back == data and len(set(digests.values())) == 1
    print("\n  all four agree: the bytes are the same.\n" if agree else "\n  THEY DIFFER.\n")
    if agree:
        print("  Next: put `agent-sandbox mcp` into your MCP client (README.md), or `make test`.\n")
    return agree


def main() -> int:
    """Run the demo on the given file, by default this repository's licence."""
    file = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "LICENSE"
    if not file.is_file() or file.stat().st_size > MAX_FILE_BYTES:
        print(f"demo: {file} is not a file of at most {MAX_FILE_BYTES:,} bytes", file=sys.stderr)
        return 2
    agree = False
    try:
        agree = anyio.run(demo, file.name, file.read_bytes())
    except* ToolFailedError:  # the client's task group wraps what happens inside it
        pass
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
