"""Which tools a server offers, by what it can do with a file."""

from __future__ import annotations

from collections.abc import Callable

from agent_sandbox.errors import ConfigError
from agent_sandbox.uploads.models import Placer, Principal
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.tools import check, sessions, transfers, uses
from agent_sandbox.uploads.tools.backend import Backend, Context, SandboxFiles
from agent_sandbox.uploads.tools.tool import UploadTool


def upload_tools(
    service: UploadService,
    *,
    principal: Principal | Callable[[Context], Principal],
    placer: Placer | None = None,
    files: Callable[[Context], SandboxFiles] | None = None,
    use_tool: str = "place_upload",
    use_description: str | None = None,
) -> tuple[UploadTool, ...]:
    """Return the tools of upload sessions for an `MCPServer` of any kind.

    The same application must serve `upload_routes(service)`, and something must run
    `service.run_upkeep()`.

    Args:
        service: The running service.
        principal: Who calls are made for. A fixed one fits a server on STDIO, which has one user;
            over HTTP take it from the verified credential of the call.
        placer: Your use of a file; the tool `use_tool` {upload_id} then runs it once.
        files: Your sandboxes; the tools then place, fetch and download by path.
        use_tool: Name of the tool that uses a file (`create_translation`).
        use_description: What it does, for the model.

    Raises:
        ConfigError: E6000, both `placer` and `files`.
    """

    async def running(_context: Context) -> UploadService:
        return service

    def fixed(_context: Context) -> Principal:
        assert isinstance(principal, Principal)  # noqa: S101 - see below
        return principal

    def using(_context: Context) -> Placer:
        assert placer is not None  # noqa: S101 - see below
        return placer

    return backend_tools(
        Backend(
            service=running,
            principal=fixed if isinstance(principal, Principal) else principal,
            placer=None if placer is None else using,
            files=files,
            use_tool=use_tool,
            use_description=use_description,
        )
    )


def backend_tools(backend: Backend) -> tuple[UploadTool, ...]:
    """Return the tools of a server that decides about everything at each call.

    Raises:
        ConfigError: E6000, both `placer` and `files`.
    """
    if backend.placer is not None and backend.files is not None:
        raise ConfigError(reason="Give the tools of upload sessions a placer or files, not both.")
    return (
        *sessions.tools(backend),
        *uses.tools(backend),
        *check.tools(backend),
        *transfers.tools(backend),
    )
