"""The gates and the metadata route that a server's settings ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mcp.server.auth.routes import build_resource_metadata_url, create_protected_resource_routes
from mcp.server.auth.settings import AuthSettings
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_sandbox.mcp_server.auth.authority import Authority
from agent_sandbox.mcp_server.auth.bearer import BearerGate, Challenge
from agent_sandbox.mcp_server.auth.settings import OAuthConfig


class Protection:
    """What stands before the MCP endpoint, and before what else asks for credentials.

    Args:
        authority: Who is let in.
        oauth: Whose access tokens are taken, if any.
        app: The endpoint.
        manager: The sessions behind it.
    """

    def __init__(
        self,
        authority: Authority,
        oauth: OAuthConfig | None,
        app: ASGIApp,
        manager: StreamableHTTPSessionManager,
    ) -> None:
        self._manager = manager
        self._authority = authority
        self.routes: list[Route] = []
        challenge = Challenge()
        if oauth is not None:
            # The SDK's own settings keep URLs as they were written, to the last slash.
            urls = AuthSettings.model_validate(
                {
                    "issuer_url": oauth.issuer,
                    "resource_server_url": oauth.resource,
                    "validate_token_resource": False,  # `AccessTokens` checks the audience
                }
            )
            resource = urls.resource_server_url
            assert resource is not None  # noqa: S101 - given above
            challenge = Challenge(str(build_resource_metadata_url(resource)), oauth.scopes)
            self.routes = create_protected_resource_routes(
                resource,
                [urls.issuer_url],
                scopes_supported=list(oauth.scopes) or None,
                resource_name="agent-sandbox",
            )
        self._challenge = challenge
        self.gate = self.gated(app)

    def gated(self, app: ASGIApp) -> BearerGate:
        """Return `app` behind the same question. Only requests of `gate` are watched further."""
        return BearerGate(app, self._authority, self._challenge)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Throw out whose rights end, while the body runs."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.gate.watch, self._manager)
            yield
            tasks.cancel_scope.cancel()
