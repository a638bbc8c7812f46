"""The only place that touches private parts of the MCP SDK.

`tests/mcp_server/test_sdk_parts.py` fails when one of them vanishes, and the dependency is pinned
to the minor version that was read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import METHOD_NOT_FOUND

from agent_sandbox.mcp_server.principals import ANONYMOUS, Principal


def connection_of(context: Context[Any, Any]) -> Connection:
    """Return the connection that a call arrived on.

    Up to 2025-11-25 it lives as long as the session. On 2026-07-28 it lives for one request, on
    STDIO too: nothing that must outlive the call may hang on its exit stack.
    """
    connection: Connection = context.session._connection
    return connection


def lowlevel_server(server: MCPServer[Any]) -> Server[Any]:
    """Return the low-level server that transports drive."""
    return server._lowlevel_server


_NOT_SERVED = (
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "completion/complete",
)


def serve_tools_alone(server: MCPServer[Any]) -> None:
    """Keep the server from announcing prompts and resources, and from repeating unknown methods.

    `MCPServer` serves empty lists of what it was given none of; a client that was told of a
    capability asks for them, and may show a person two sections that are always empty.
    """
    low = lowlevel_server(server)
    for method in _NOT_SERVED:
        low._request_handlers.pop(method, None)
    low.middleware.append(_without_the_name)


async def _without_the_name(
    ctx: ServerRequestContext[Any, Any], call_next: CallNext
) -> HandlerResult:
    try:
        return await call_next(ctx)
    except MCPError as error:
        if error.code != METHOD_NOT_FOUND:
            raise
        raise MCPError(METHOD_NOT_FOUND, "Method not found") from None


def owners_of_sessions(manager: StreamableHTTPSessionManager) -> dict[str, Principal]:
    """Return whose each session is, without those that were opened without credentials."""
    return {
        session_id: Principal(owner["client_id"], owner["issuer"], owner["subject"])
        for session_id, owner in manager._session_owners.items()
    }


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session of HTTP.

    Attributes:
        id: Its id.
        principal: Whose it is.
        idle_s: How long it has had no request; 0 while one, or a stream, is open.
    """

    id: str
    principal: Principal
    idle_s: float


def open_sessions(manager: StreamableHTTPSessionManager) -> list[OpenSession]:
    """Return the sessions that are open."""
    owners = owners_of_sessions(manager)
    timeout_s = manager.session_idle_timeout or math.inf
    found = []
    for session_id, transport in manager._server_instances.items():
        # The end of the idle period moves with each request, and is never while one is served.
        idle = transport.idle_scope
        left_s = math.inf if idle is None else idle.deadline - anyio.current_time()
        idle_s = max(0.0, timeout_s - left_s) if math.isfinite(left_s) else 0.0
        found.append(OpenSession(session_id, owners.get(session_id, ANONYMOUS), idle_s))
    return found


async def end_session(manager: StreamableHTTPSessionManager, session_id: str) -> None:
    """End a session as its client's DELETE would: its calls, its streams, and what it owns."""
    transport = manager._server_instances.get(session_id)
    if transport is not None:
        await manager._discard_session(session_id, transport)


@contextmanager
def root_logger_untouched() -> Iterator[None]:
    """Keep `logging.basicConfig`, which the constructor of `MCPServer` calls, without effect.

    It does nothing while the root logger has a handler; this one discards what it gets.
    """
    root = logging.getLogger()
    placeholder = logging.NullHandler()
    root.addHandler(placeholder)
    try:
        yield
    finally:
        root.removeHandler(placeholder)
