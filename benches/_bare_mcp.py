"""A bare `MCPServer`, as anybody would write it: the peer of `bench_mcp`.

One tool takes Base64 and keeps the bytes, the other returns them as Base64, once. No sandbox.
"""

from __future__ import annotations

import base64
import socket
import sys

from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, TextContent

server = MCPServer[None]("bare", log_level="WARNING")
kept: dict[str, bytes] = {}


@server.tool()
def upload(path: str, content_base64: str) -> int:
    """Keep the bytes and return their number."""
    kept[path] = base64.b64decode(content_base64, validate=True)
    return len(kept[path])


@server.tool()
def download(path: str) -> CallToolResult:
    """Return the bytes."""
    fields = {"content_base64": base64.b64encode(kept[path]).decode()}
    return CallToolResult(content=[TextContent(type="text", text="{}")], structured_content=fields)


def main(transport: str) -> None:
    if transport == "stdio":
        server.run()
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"http://127.0.0.1:{port}/mcp", file=sys.stderr, flush=True)
    server.run("streamable-http", port=port, json_response=True)


if __name__ == "__main__":
    main(sys.argv[1])
