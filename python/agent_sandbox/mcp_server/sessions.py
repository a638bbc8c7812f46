"""Which HTTP sessions may be opened, and which make room for them."""

from __future__ import annotations

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.ownership import Registry
from agent_sandbox.mcp_server.principals import ANONYMOUS, Principal

UNUSED_S = 60.0
"""A session that owns nothing and is idle for longer makes room: many clients never end theirs."""


class Admission:
    """Bounds the sessions of one server, and those of each caller.

    Attributes:
        registry: What sessions own; None until the server has started.

    Args:
        manager: The sessions.
        config: How many there may be.
    """

    def __init__(self, manager: StreamableHTTPSessionManager, config: McpConfig) -> None:
        self._manager = manager
        self._config = config
        self.registry: Registry | None = None

    async def may_open(self, principal: Principal) -> bool:
        """Tell whether a caller may open a session, and end one that is unused if it takes that.

        One that owns a sandbox never makes room: that would destroy what somebody works with.
        """
        sessions = _sdk.open_sessions(self._manager)
        own = [one for one in sessions if one.principal == principal]
        if principal != ANONYMOUS and len(own) >= self._config.max_sessions_each:
            return await self._end_unused(own)
        if len(sessions) >= self._config.max_sessions:
            return await self._end_unused(sessions)
        return True

    async def _end_unused(self, sessions: list[_sdk.OpenSession]) -> bool:
        owning = self.registry.owning_sessions() if self.registry is not None else frozenset()
        unused = [one for one in sessions if one.idle_s > UNUSED_S and one.id not in owning]
        if not unused:
            return False
        await _sdk.end_session(self._manager, max(unused, key=lambda one: one.idle_s).id)
        return True
