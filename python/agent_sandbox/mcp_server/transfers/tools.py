"""The tools of upload sessions on this server's sandboxes."""

from __future__ import annotations

from agent_sandbox.mcp_server import principals
from agent_sandbox.mcp_server.ownership import Use
from agent_sandbox.mcp_server.scopes import scope_of
from agent_sandbox.mcp_server.state import ServerState
from agent_sandbox.mcp_server.tool import Call
from agent_sandbox.mcp_server.transfers.files import CallFiles
from agent_sandbox.mcp_server.transfers.principals import principal_of
from agent_sandbox.uploads.models import Principal
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.tools import Backend, Context, SandboxFiles, backend_tools


def _state(context: Context) -> ServerState:
    state: ServerState = context.request_context.lifespan_context
    return state


async def _service(context: Context) -> UploadService:
    return await _state(context).uploads.service()


def _principal(context: Context) -> Principal:
    return principal_of(context, _state(context).uploads)


def _files(context: Context) -> SandboxFiles:
    state = _state(context)
    caller = principals.principal_of(context.request_context.request)
    use = Use(scope_of(context, state.registry), caller)
    return CallFiles(Call(state, use), state.uploads)


TOOLS = backend_tools(Backend(service=_service, principal=_principal, files=_files))
