"""One MCP tool: validate once, run, and always answer with our own result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp_types import CallToolResult, ToolAnnotations

from agent_sandbox.errors import AgentSandboxError, CommandTimeoutError, UnsupportedError
from agent_sandbox.mcp_server.arguments import A, Arguments, parse
from agent_sandbox.mcp_server.logs import log_unavailable, log_unexpected
from agent_sandbox.mcp_server.outputs import result_fields
from agent_sandbox.mcp_server.ownership import Registry, Use
from agent_sandbox.mcp_server.principals import principal_of
from agent_sandbox.mcp_server.schemas import Schema
from agent_sandbox.mcp_server.scopes import scope_of
from agent_sandbox.mcp_server.splice import spliced_of
from agent_sandbox.mcp_server.state import ServerState
from agent_sandbox.toolkit.failures import failure
from agent_sandbox.toolkit.results import UNREPEATED, to_result

NEXT_STEP = (
    "Pass this sandbox_id in later calls: without it each call makes another, empty sandbox. Call"
    " kill_sandbox when you are done."
)
"""Told once for every sandbox that is made where the connection has no session."""

Fields = dict[str, Any]
Operation = Callable[["Call", Any], Awaitable[Fields]]


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """What a tool's operation works with.

    Attributes:
        state: The running server.
        use: Whose call it is, and the sandbox it used.
    """

    state: ServerState
    use: Use

    @property
    def registry(self) -> Registry:
        """Where sandboxes are resolved."""
        return self.state.registry

    def require_streaming(self) -> None:
        """Refuse a bounded read, before anything is asked of anybody, where it cannot be kept.

        Raises:
            UnsupportedError: E5006: the provider reads whole values.
        """
        if not self.state.client.streaming:
            raise UnsupportedError

    def file_fields(self, **fields: Any) -> Fields:
        """Return the fields of a success on a sandbox's files, with what every one of them has."""
        use, scope = self.use, self.use.scope
        assert use.sandbox_id is not None  # noqa: S101 - a file operation resolved one
        result = {"success": True, **fields, "sandbox_id": use.sandbox_id}
        if (
            scope is not None
            and scope.replacing
            and self.registry.is_default(scope, use.sandbox_id)
        ):
            scope.replacing = False
            use.created = True
        if use.created:
            result["sandbox_created"] = True
        return result


class SandboxTool(Tool):
    """A tool whose failures are results of ours, whatever was raised.

    The SDK would ignore unknown arguments, repeat rejected values to the client and log
    tracebacks; none of its own validation runs.
    """

    arguments_type: type[Arguments]
    note: str | None = None
    advice: Mapping[str, str]
    """What to do next after an error, by its code."""

    async def run(
        self, arguments: dict[str, Any], context: Context[Any, Any], convert_result: bool = False
    ) -> CallToolResult:
        """Run the tool; never raises but on cancellation."""
        request = context.request_context
        state: ServerState = request.lifespan_context
        version = request.protocol_version
        use = Use(scope_of(context, state.registry), principal_of(request.request))
        try:
            fields = await self.fn(Call(state, use), parse(self.arguments_type, arguments))
        except AgentSandboxError as error:
            log_unavailable(error)
            failed = _failure(error, use, self.advice.get(error.code)) | _written(error)
            return to_result(failed, version, is_error=True)
        except Exception as error:  # noqa: BLE001 - the edge: outsiders see the fixed text
            log_unexpected(self.name, error)
            return to_result(_failure(AgentSandboxError(), use), version, is_error=True)
        fields |= next_step(use)
        spliced = spliced_of(request.request)
        if spliced is not None and UNREPEATED in fields:
            fields[UNREPEATED] = spliced.leave_out(fields[UNREPEATED])
        return to_result(fields, version, note=self.note)


def _failure(error: AgentSandboxError, use: Use, advice: str | None = None) -> Fields:
    return failure(error, use.sandbox_id) | next_step(use, advice)


def next_step(use: Use, advice: str | None = None) -> Fields:
    """Return the field that says what to do next: as advised, and about a sandbox that was made."""
    made = NEXT_STEP if use.scope is None and use.created else None  # nothing owns it
    steps = [step for step in (advice, made) if step]
    return {"next_step": " ".join(steps)} if steps else {}


def _written(error: AgentSandboxError) -> Fields:
    """Return what a command had written before it was killed for want of time."""
    if isinstance(error, CommandTimeoutError) and error.result is not None:
        return result_fields(error.result)
    return {}


def make_tool(
    operation: Callable[[Call, A], Awaitable[Fields]],
    arguments_type: type[A],
    *,
    title: str,
    description: str,
    input_schema: Schema,
    output_schema: Schema,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    note: str | None = None,
    advice: Mapping[str, str] | None = None,
) -> SandboxTool:
    """Return the tool named after `operation`.

    Sandboxes are a closed world: no tool of this server reaches beyond them.
    """
    return SandboxTool(
        fn=operation,
        name=operation.__name__,
        title=title,
        description=description,
        parameters=input_schema,
        fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=output_schema),
        is_async=True,
        context_kwarg=None,
        annotations=ToolAnnotations(
            title=title,
            read_only_hint=read_only,
            destructive_hint=destructive,
            idempotent_hint=idempotent,
            open_world_hint=False,
        ),
        arguments_type=arguments_type,
        note=note,
        advice=advice or {},
    )
