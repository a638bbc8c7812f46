"""The tools by subject; `ALL_TOOLS` is what the server offers, in the order it lists them."""

from __future__ import annotations

from agent_sandbox.mcp_server.tool import SandboxTool
from agent_sandbox.mcp_server.tools import binary, commands, listing, sandboxes, text

ALL_TOOLS: tuple[SandboxTool, ...] = (
    *sandboxes.TOOLS,
    *binary.TOOLS,
    *text.TOOLS,
    *listing.TOOLS,
    *commands.TOOLS,
)
