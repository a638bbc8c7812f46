"""The routes of upload sessions on this server's own HTTP."""

from __future__ import annotations

from typing import ClassVar

from starlette.types import Receive, Scope, Send

from agent_sandbox.errors import AgentSandboxError, UploadBusyError, UploadError
from agent_sandbox.mcp_server.logs import log_unexpected
from agent_sandbox.mcp_server.transfers.uploads import Uploads
from agent_sandbox.uploads.http.answers import refuse


class TransferRoutes:
    """Serves transfers with the service of the running server, which opens on first need.

    Attributes:
        uploads: Set when the server's state is open.
        failed: Why `open` failed.
    """

    PATHS: ClassVar = (
        *("/uploads", "/uploads/{rest:path}", "/downloads", "/downloads/{rest:path}"),
        "/llms.txt",
    )

    def __init__(self) -> None:
        self.uploads: Uploads | None = None
        self.failed: AgentSandboxError | None = None

    async def open(self) -> None:
        """Open the service now instead of at the first need.

        Raises:
            AgentSandboxError: As `Uploads.service`.
        """
        assert self.uploads is not None  # noqa: S101 - the state is open
        try:
            await self.uploads.service()
        except AgentSandboxError as error:
            self.failed = error
            raise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            if self.uploads is None:
                raise UploadBusyError
            app = await self.uploads.app()
        except Exception as error:  # noqa: BLE001 - an edge: outsiders see a fixed text
            refusal = error if isinstance(error, UploadError) else UploadError()
            if not isinstance(error, AgentSandboxError):  # of those `Uploads` has told
                log_unexpected("opening the uploads", error)
            await refuse(scope, receive, send, refusal)
            return
        await app(scope, receive, send)
