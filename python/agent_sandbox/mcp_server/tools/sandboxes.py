"""Sandboxes themselves: make, list, look at, prolong, end. None of these adopts a sandbox."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from agent_sandbox.errors import SandboxNotFoundError, SandboxTimeoutError
from agent_sandbox.limits import MAX_TTL_S
from agent_sandbox.mcp_server import schemas
from agent_sandbox.mcp_server.arguments import (
    CreateSandboxArguments,
    NoArguments,
    SandboxArguments,
    SetTtlArguments,
)
from agent_sandbox.mcp_server.ownership import check_sandbox_id
from agent_sandbox.mcp_server.timing import time_limit
from agent_sandbox.mcp_server.tool import Call, Fields, make_tool
from agent_sandbox.models import SandboxInfo


async def create_sandbox(call: Call, arguments: CreateSandboxArguments) -> Fields:
    """Make a sandbox that the scope owns."""
    ttl_seconds = arguments.ttl_seconds or call.state.config.ttl_seconds
    handle = await call.registry.create(call.use, ttl_seconds)
    return {
        "success": True,
        "sandbox_id": handle.sandbox_id,
        "ttl_seconds": ttl_seconds,
        "is_default": call.registry.is_default(call.use.scope, handle.sandbox_id),
    }


async def list_sandboxes(call: Call, _arguments: NoArguments) -> Fields:
    """List what the provider knows and is the caller's."""
    principal = call.use.principal
    with _limit(call):
        await call.registry.settle_leases(principal)
        found = list(await call.state.client.list())
    own = (info for info in found if principal.may_see(info.metadata))
    return {"success": True, "sandboxes": [_about(call, info) for info in own]}


async def get_sandbox(call: Call, arguments: SandboxArguments) -> Fields:
    """Look at one sandbox without touching it."""
    check_sandbox_id(arguments.sandbox_id)
    with _limit(call):
        await call.registry.settle_lease(call.use.principal, arguments.sandbox_id)
        info = await call.state.client.info(arguments.sandbox_id)
    if not call.use.principal.may_see(info.metadata):
        raise SandboxNotFoundError
    return {"success": True, **_about(call, info)}


async def set_sandbox_ttl(call: Call, arguments: SetTtlArguments) -> Fields:
    """Set the end of a sandbox from now on, sooner or later than it was."""
    with _limit(call):
        await call.registry.find(call.use.principal, arguments.sandbox_id)
        # Before, not after: a renewal of an earlier call must not undo a shorter time.
        await call.registry.settle_lease(call.use.principal, arguments.sandbox_id)
        await call.state.client.set_ttl(arguments.sandbox_id, arguments.ttl_seconds)
    call.registry.set_lease_ttl(arguments.sandbox_id, arguments.ttl_seconds)
    return {
        "success": True,
        "sandbox_id": arguments.sandbox_id,
        "ttl_seconds": arguments.ttl_seconds,
    }


async def kill_sandbox(call: Call, arguments: SandboxArguments) -> Fields:
    """Destroy a sandbox of the caller's, whichever session owns it."""
    with _limit(call):
        await call.registry.find(call.use.principal, arguments.sandbox_id)
        existed = await call.state.client.kill(arguments.sandbox_id)
    call.registry.forget(arguments.sandbox_id)
    if not existed:
        raise SandboxNotFoundError
    return {"success": True, "sandbox_id": arguments.sandbox_id}


def _limit(call: Call) -> AbstractContextManager[None]:
    return time_limit(call.registry.resolve_timeout_s, SandboxTimeoutError)


def _about(call: Call, info: SandboxInfo) -> dict[str, Any]:
    return {
        "sandbox_id": info.sandbox_id,
        "state": info.state,
        "started_at": info.started_at.isoformat(),
        "end_at": info.end_at.isoformat(),
        "is_default": call.registry.is_default(call.use.scope, info.sandbox_id),
        "is_owned": call.registry.is_owned(call.use.scope, info.sandbox_id),
    }


_ID = {"type": "string", "description": "The sandbox."}
_DEFAULT = {"type": "boolean", "description": "Calls without sandbox_id use this sandbox."}
_ABOUT: dict[str, schemas.Schema] = {
    "sandbox_id": _ID,
    "state": {"type": "string"},
    "started_at": {"type": "string", "description": "ISO 8601, UTC."},
    "end_at": {
        "type": "string",
        "description": "When it ends unless it is renewed. ISO 8601, UTC.",
    },
    "is_default": _DEFAULT,
    "is_owned": {"type": "boolean", "description": "It is destroyed when this session ends."},
}
_NAMED = schemas.closed_input({"sandbox_id": schemas.SANDBOX_ID_IN}, required=("sandbox_id",))

TOOLS = (
    make_tool(
        create_sandbox,
        CreateSandboxArguments,
        title="Create a sandbox",
        description=(
            "Create an isolated sandbox with its own files. You rarely need it: file tools create"
            " one on first use. The first sandbox of a session is what calls without sandbox_id"
            " use. It ends ttl_seconds after its last use (file tools renew it), at the latest when"
            " this session ends; where the connection has no session, call kill_sandbox when you"
            " are done."
        ),
        input_schema=schemas.closed_input({"ttl_seconds": schemas.TTL_IN}),
        output_schema=schemas.output(
            {
                "sandbox_id": _ID,
                "ttl_seconds": schemas.TTL_IN,
                "is_default": _DEFAULT,
                "next_step": schemas.NEXT_STEP,
            },
            optional=("next_step",),
        ),
    ),
    make_tool(
        list_sandboxes,
        NoArguments,
        title="List sandboxes",
        description=(
            "List your sandboxes, with their state and when they end. Looking"
            " changes nothing and makes nobody an owner."
        ),
        input_schema=schemas.closed_input({}),
        output_schema=schemas.output(
            {
                "sandboxes": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": _ABOUT,
                        "required": list(_ABOUT),
                        "additionalProperties": False,
                    },
                }
            }
        ),
        read_only=True,
        idempotent=True,
    ),
    make_tool(
        get_sandbox,
        SandboxArguments,
        title="Look at a sandbox",
        description=(
            "Tell the state of one sandbox and when it ends. Looking neither renews it nor makes"
            " this session its owner."
        ),
        input_schema=_NAMED,
        output_schema=schemas.output(_ABOUT),
        read_only=True,
        idempotent=True,
    ),
    make_tool(
        set_sandbox_ttl,
        SetTtlArguments,
        title="Set a sandbox's time to live",
        description=(
            "Let a sandbox end ttl_seconds from now, sooner or later than before; 1 to"
            f" {MAX_TTL_S:,} (24 hours). Later file calls renew it by the same time. It does not"
            " make this session the owner, and a sandbox that this session owns still ends with"
            " the session."
        ),
        input_schema=schemas.closed_input(
            {"sandbox_id": schemas.SANDBOX_ID_IN, "ttl_seconds": schemas.TTL_IN},
            required=("sandbox_id", "ttl_seconds"),
        ),
        output_schema=schemas.output({"sandbox_id": _ID, "ttl_seconds": schemas.TTL_IN}),
        idempotent=True,
    ),
    make_tool(
        kill_sandbox,
        SandboxArguments,
        title="Destroy a sandbox",
        description=(
            "Destroy a sandbox at once, with all its files; it cannot be undone. Download what you"
            " need first. After the default sandbox is destroyed, the next call without sandbox_id"
            " creates a new, empty one."
        ),
        input_schema=_NAMED,
        output_schema=schemas.output({"sandbox_id": _ID}),
        destructive=True,
        idempotent=True,
    ),
)
