"""What owns sandboxes and ends: the process under STDIO, the session under legacy HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mcp.server.mcpserver import Context
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.creation import Creation, Handle
from agent_sandbox.mcp_server.principals import Principal, principal_of
from agent_sandbox.mcp_server.splice import LineRequest

if TYPE_CHECKING:
    from agent_sandbox.mcp_server.ownership import Registry

_STATE_KEY = "agent_sandbox.scope"


class Scope:
    """One owner of sandboxes.

    Attributes:
        principal: Whose scope it is.
        session_id: The HTTP session that it is, if it is one.
        default: The sandbox that calls without `sandbox_id` use; never an adopted one.
        owned: Ids of what the scope created or adopted.
        creating: The latest default in the making.
        replacing: A default is gone, and no result has said yet that there is a new one.
        ended: Nothing may be added any more.
    """

    def __init__(self, principal: Principal, session_id: str | None = None) -> None:
        self.principal = principal
        self.session_id = session_id
        self.default: Handle | None = None
        self.owned: set[str] = set()
        self.creating: Creation | None = None
        self.replacing = False
        self.ended = False


def scope_of(context: Context[Any, Any], registry: Registry) -> Scope | None:
    """Return the scope of a call, or None on 2026-07-28 over HTTP, where nothing is owned."""
    request = context.request_context
    if request.request is None or isinstance(request.request, LineRequest):
        return registry.process_scope
    if request.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return None
    connection = _sdk.connection_of(context)
    scope = connection.state.get(_STATE_KEY)
    if not isinstance(scope, Scope):
        session_id = request.request.headers.get("mcp-session-id")
        scope = registry.open_scope(principal_of(request.request), session_id)
        connection.state[_STATE_KEY] = scope
        # The SDK abandons this stack after 5 s; ending a scope only records and never waits.
        connection.exit_stack.callback(registry.end_scope, scope)
    return scope
