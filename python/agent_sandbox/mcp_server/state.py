"""The running server's state: one client, one registry, one task group."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from agent_sandbox import SandboxClient
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.handoff import hand_off
from agent_sandbox.mcp_server.ownership import Registry
from agent_sandbox.mcp_server.tasks import Tasks
from agent_sandbox.mcp_server.transfers.uploads import Served, Uploads


@dataclass(frozen=True, eq=False, slots=True)
class ServerState:
    """What the tools share; given to them as the SDK's lifespan context."""

    config: McpConfig
    client: SandboxClient
    registry: Registry
    tasks: Tasks
    uploads: Uploads


@asynccontextmanager
async def open_state(
    config: McpConfig, *, served: Served | None = None
) -> AsyncIterator[ServerState]:
    """Open the state of one server; at the end every scope ends, in bounded time.

    What is not destroyed after `shutdown_timeout_s` ends with the embedded service, or is handed
    to a process of its own.

    Args:
        config: Settings.
        served: How the caller serves the routes of upload sessions; None opens a listener for
            them on first need.

    Raises:
        ConfigError: E6000, settings that contradict each other.
    """
    settings = config.settings()
    client = config.client()
    async with client, anyio.create_task_group() as tasks:
        registry = Registry(client, config, tasks)
        uploads = Uploads(config.transfers, tasks, served)
        try:
            yield ServerState(config, client, registry, Tasks(registry), uploads)
        finally:
            with anyio.CancelScope(shield=True):
                registry.end_all()
                async with anyio.create_task_group() as ending:
                    ending.start_soon(uploads.end, config.shutdown_timeout_s)
                    left = await registry.drain(config.shutdown_timeout_s)
            if left and settings.provider != "local":
                hand_off(settings, left)
            tasks.cancel_scope.cancel()
