"""The MCP server: sandbox tools over STDIO and Streamable HTTP, both protocol eras.

`agent_sandbox.mcp_server.app` starts it; `build_server` makes one for an own program.
"""

from __future__ import annotations

from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.server import build_server

__all__ = ["McpConfig", "build_server"]
