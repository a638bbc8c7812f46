"""The tools by subject; `ALL_TOOLS` is what the server offers, in the order it lists them."""

from __future__ import annotations

from mcp.server.mcpserver.tools import Tool

from agent_sandbox.mcp_server.tools import binary, commands, listing, sandboxes, text
from agent_sandbox.mcp_server.transfers import tools as transfers

ALL_TOOLS: tuple[Tool, ...] = (
    *sandboxes.TOOLS,
    *binary.TOOLS,
    *text.TOOLS,
    *listing.TOOLS,
    *commands.TOOLS,
    *transfers.TOOLS,
)
