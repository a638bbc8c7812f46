"""`python -m agent_sandbox.mcp_server.finish`: destroys what an ended server has handed over.

Nothing of the package imports this module: it is a program.
"""

from __future__ import annotations

import json
import sys

import anyio

from agent_sandbox import SandboxClient
from agent_sandbox.client.settings import Settings
from agent_sandbox.mcp_server.reaper import Reaper

GIVE_UP_S = 600.0
"""After this the sandboxes are left to their time to live."""


async def finish(settings: Settings, sandbox_ids: list[str], timeout_s: float = GIVE_UP_S) -> None:
    """Destroy sandboxes, trying again until they are gone or the time is over."""
    async with (
        SandboxClient(
            provider=settings.provider,
            api_url=settings.api_url,
            api_key=settings.api_key,
            sandbox_url=settings.sandbox_url,
        ) as client,
        anyio.create_task_group() as tasks,
    ):
        reaper = Reaper(client, tasks)
        reaper.doom(sandbox_ids)
        await reaper.drain(timeout_s)
        tasks.cancel_scope.cancel()


def main() -> None:
    """Read an order from standard input and carry it out."""
    order = json.load(sys.stdin)
    anyio.run(finish, Settings(**order["settings"]), order["sandbox_ids"])


if __name__ == "__main__":
    main()
