"""One tool of upload sessions: validate once, run, and always answer with our own result."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase, FuncMetadata
from mcp_types import CallToolResult, ToolAnnotations
from pydantic import Field

from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.toolkit.arguments import A, Arguments, parse
from agent_sandbox.toolkit.failures import failure
from agent_sandbox.toolkit.results import to_result
from agent_sandbox.toolkit.schemas import Schema
from agent_sandbox.uploads import guidance
from agent_sandbox.uploads.tools.backend import Backend, Call, Context
from agent_sandbox.uploads.tools.schemas import Fields

_log = logging.getLogger(__name__)


class UploadTool(Tool):
    """A tool whose failures are results of ours, whatever was raised.

    The SDK would ignore unknown arguments, repeat rejected values to the client and log
    tracebacks; none of its own validation runs.
    """

    arguments_type: type[Arguments]
    backend: Any = Field(exclude=True)

    async def run(
        self, arguments: dict[str, Any], context: Context, convert_result: bool = False
    ) -> CallToolResult:
        """Run the tool; never raises but on cancellation."""
        version = context.request_context.protocol_version
        call: Call | None = None
        try:
            parsed = parse(self.arguments_type, arguments)
            call = await Call.begin(self.backend, context)
            fields = await self.fn(call, parsed)
        except AgentSandboxError as error:
            return to_result(self._failure(error, call), version, is_error=True)
        except Exception as error:  # noqa: BLE001 - the edge: outsiders see the fixed text
            _log.error("%s failed with %s", self.name, type(error).__name__)
            return to_result(self._failure(AgentSandboxError(), call), version, is_error=True)
        return to_result({"success": True, **fields}, version)

    def _failure(self, error: AgentSandboxError, call: Call | None) -> Fields:
        files = None if call is None else call.files
        fields = failure(error, None if files is None else files.sandbox_id)
        state = getattr(error, "state", None)
        if state:
            fields["state"] = state
        retry_after_s = getattr(error, "retry_after_s", None)
        if retry_after_s is not None:
            fields["retry_after_seconds"] = retry_after_s
        extensions = getattr(error, "allowed_extensions", None)
        if extensions is not None:
            fields["allowed_extensions"] = extensions
        if error.code in guidance.NEXT_STEP:
            backend: Backend = self.backend
            fields["next_step"] = backend.named(guidance.NEXT_STEP[error.code])
        return fields


def make_tool(
    backend: Backend,
    operation: Callable[[Call, A], Awaitable[Fields]],
    arguments_type: type[A],
    *,
    title: str,
    description: str,
    input_schema: Schema,
    output_schema: Schema,
    name: str | None = None,
    read_only: bool = False,
    destructive: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
) -> UploadTool:
    """Return the tool named after `operation`, or by `name`."""
    return UploadTool(
        fn=operation,
        name=name or operation.__name__,
        title=title,
        description=backend.named(description),
        parameters=input_schema,
        fn_metadata=FuncMetadata(arg_model=ArgModelBase, output_schema=output_schema),
        is_async=True,
        context_kwarg=None,
        annotations=ToolAnnotations(
            title=title,
            read_only_hint=read_only,
            destructive_hint=destructive,
            idempotent_hint=idempotent,
            open_world_hint=open_world,
        ),
        arguments_type=arguments_type,
        backend=backend,
    )
