"""Background tasks, as an MCP client sees them."""

from __future__ import annotations

from typing import Any

import anyio
from mcp import Client
from tests.support.express import Service
from tests.support.mcp_servers import WAIT_S

from agent_sandbox.errors import TaskNotFoundError

NO_SUCH_TASK = {"error": TaskNotFoundError.text, "error_category": "not_found"}
"""The answer about a task that does not exist, for this caller."""


def elsewhere(express: Service) -> dict[str, str]:
    """Return the environment of an MCP server whose sandboxes are there."""
    return {"AGENT_SANDBOX_API_URL": express.url, "AGENT_SANDBOX_URL": express.url}


async def fields_of(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return its fields."""
    result = await client.call_tool(tool, arguments)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def until(client: Client, task_id: str, **wanted: Any) -> dict[str, Any]:
    """Look at a task until it is as wanted."""
    with anyio.fail_after(WAIT_S):
        while True:
            fields = await fields_of(client, "get_background_task", task_id=task_id)
            if wanted.items() <= fields.items():
                return fields


async def listed(client: Client) -> list[dict[str, Any]]:
    """Return the tasks that are listed."""
    fields = await fields_of(client, "list_background_tasks")
    assert fields["omitted_tasks"] == 0
    tasks: list[dict[str, Any]] = fields["tasks"]
    return tasks


def entry(tasks: list[dict[str, Any]], task_id: str) -> dict[str, Any]:
    """Return one of them."""
    (found,) = (task for task in tasks if task["task_id"] == task_id)
    return found
