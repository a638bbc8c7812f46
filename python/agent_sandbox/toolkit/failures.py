"""Errors as MCP tools report them: a fixed text and a category, and nothing of the input."""

from __future__ import annotations

from typing import Any

from agent_sandbox.errors import AgentSandboxError


def failure(error: AgentSandboxError, sandbox_id: str | None = None) -> dict[str, Any]:
    """Return the fields of a failed call.

    Args:
        error: What stopped it; only its class is used.
        sandbox_id: The sandbox the call was given by the server, if it got that far.
    """
    fields: dict[str, Any] = {"error": type(error).text, "error_category": type(error).category}
    if sandbox_id is not None:
        fields["sandbox_id"] = sandbox_id
    return fields
