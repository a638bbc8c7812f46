"""The server: our tools on the SDK's `MCPServer`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult

from agent_sandbox.errors import UnknownToolError
from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.logs import SDK_LOGGERS, redact_libraries
from agent_sandbox.mcp_server.state import ServerState, open_state
from agent_sandbox.mcp_server.tools import ALL_TOOLS
from agent_sandbox.toolkit.failures import failure
from agent_sandbox.toolkit.results import to_result

NAME = "agent-sandbox"

INSTRUCTIONS = (
    "Files and commands in isolated sandboxes. Without sandbox_id, calls use one sandbox that is"
    " made on first need; its id is in every result. Text: read_file, write_file. Binary, up to"
    " 1 MiB: upload_file, download_file. Larger files, and files that you would have to retype:"
    " create_upload_url, create_download_url. Commands: run_command, and start_background_task for"
    " long work. A sandbox ends when it has not been used for its time to live, or when the session"
    " that owns it ends: take out what you need before."
)

OpenState = Callable[[], AbstractAsyncContextManager[ServerState]]


class SandboxServer(MCPServer[ServerState]):
    """`MCPServer` whose answer to an unknown tool name is one of ours."""

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any],
        context: Context[ServerState, Any] | None = None,
    ) -> Any:
        """Run a tool; an unknown name is a failed result with a fixed text, not an exception."""
        if context is None or name in KNOWN_NAMES:
            return await super().call_tool(name, arguments, context)
        unknown: CallToolResult = to_result(
            failure(UnknownToolError()), context.request_context.protocol_version, is_error=True
        )
        return unknown


KNOWN_NAMES = frozenset(tool.name for tool in ALL_TOOLS)


def build_server(
    config: McpConfig | None = None, *, open_state_: OpenState | None = None
) -> SandboxServer:
    """Return a server with all tools, ready for any transport of the SDK.

    Its state (client, sandboxes, scopes) lives as long as the server's lifespan. The root logger
    is left as it is; the SDK's loggers are set to WARNING and their texts withheld.

    Args:
        config: Settings; those of the transports do not matter here.
        open_state_: Opens the state instead, for a caller that needs it too.
    """
    settings = config or McpConfig()

    @asynccontextmanager
    async def lifespan(_server: MCPServer[ServerState]) -> AsyncIterator[ServerState]:
        async with open_state_() if open_state_ else open_state(settings) as state:
            yield state

    with _sdk.root_logger_untouched():
        server = SandboxServer(
            NAME,
            title="agent-sandbox",
            instructions=INSTRUCTIONS,
            version=_package_version(),
            tools=list(ALL_TOOLS),
            lifespan=lifespan,
            subscriptions=False,
        )
    _sdk.serve_tools_alone(server)
    redact_libraries(*SDK_LOGGERS)
    return server


def _package_version() -> str:
    try:
        return version("agent-sandbox")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0"
