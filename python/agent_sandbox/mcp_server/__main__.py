"""`python -m agent_sandbox.mcp_server`: the same server as `agent-sandbox mcp`, over STDIO."""

from __future__ import annotations

from agent_sandbox.mcp_server.app import run_stdio
from agent_sandbox.mcp_server.config import McpConfig

run_stdio(McpConfig())
