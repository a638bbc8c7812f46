"""The running server's state: one client, one registry, one task group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from agent_sandbox import SandboxClient
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.logs import log
from agent_sandbox.mcp_server.ownership import Registry


@dataclass(frozen=True, eq=False, slots=True)
class ServerState:
    """What the tools share; given to them as the SDK's lifespan context."""

    config: McpConfig
    client: SandboxClient
    registry: Registry


@asynccontextmanager
async def open_state(config: McpConfig) -> AsyncIterator[ServerState]:
    """Open the state of one server; at the end every scope ends, in bounded time.

    What is left after `shutdown_timeout_s` ends with the embedded service, or by its TTL.
    """
    client = SandboxClient(
        provider=config.provider,
        api_url=config.api_url,
        api_key=config.api_key,
        sandbox_url=config.sandbox_url,
    )
    async with client, anyio.create_task_group() as tasks:
        registry = Registry(client, config, tasks)
        try:
            yield ServerState(config, client, registry)
        finally:
            with anyio.CancelScope(shield=True):
                registry.end_all()
                left = await registry.reaper.drain(config.shutdown_timeout_s)
            if left:
                log.warning("%d sandboxes were not confirmed destroyed in time", len(left))
            tasks.cancel_scope.cancel()
