"""Streamable HTTP: the application, and the server that runs it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial

import uvicorn
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.express.address import BACKLOG
from agent_sandbox.http1 import ACCEPTS, StrictHTTPProtocol
from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.auth.protection import Protection
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.http_guard import HttpGuard
from agent_sandbox.mcp_server.http_origin import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, OriginGuard
from agent_sandbox.mcp_server.logs import LoopErrors
from agent_sandbox.mcp_server.server import build_server
from agent_sandbox.mcp_server.sessions import Admission
from agent_sandbox.mcp_server.signals import stop_signals
from agent_sandbox.mcp_server.sockets import base_url
from agent_sandbox.mcp_server.state import ServerState, open_state
from agent_sandbox.mcp_server.transfers.principals import stands
from agent_sandbox.mcp_server.transfers.routes import TransferRoutes
from agent_sandbox.mcp_server.transfers.uploads import Served

MCP_PATH = "/mcp"


def build_http_app(config: McpConfig, public_url: str) -> Starlette:
    """Return the ASGI application: MCP at `/mcp`, transfers and `/health` beside it.

    Its lifespan opens and ends the server's state, so run it with lifespan support, once. Where
    the settings name credentials, `/mcp` asks for them, and so does `/metrics` if it is served.

    Args:
        config: Settings.
        public_url: Where the transfers are reached, unless the settings say something else.

    Raises:
        ConfigError: E6000, settings that contradict each other or a file that cannot be used.
    """
    transfers = TransferRoutes()
    authority = config.authority()
    served = Served(public_url)
    if authority is not None:
        # Behind a proxy everybody is near; here the gate below has asked for a token.
        served = Served(public_url, partial(stands, authority), measures=lambda _request: True)

    @asynccontextmanager
    async def opened() -> AsyncIterator[ServerState]:
        async with open_state(config, served=served) as state:
            transfers.uploads = state.uploads
            admission.registry = state.registry
            if config.transfers.is_shared:  # sessions wait there; and a mistake shows at once
                await transfers.open()
            yield state

    server = build_server(config, open_state_=opened)
    manager = StreamableHTTPSessionManager(
        app=_sdk.lowlevel_server(server),
        json_response=True,  # as an event, a 1 MiB download is over the official client's limit
        # The guard checks Host and Origin; the SDK's own check logs them as they came.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=config.idle_timeout_s,
        max_sessions=config.max_sessions,
    )
    admission = Admission(manager, config)
    endpoint: ASGIApp = HttpGuard(
        AuthContextMiddleware(manager.asgi_app),
        may_open=admission.may_open,
        body_deadline_s=config.body_deadline_s,
    )
    protection = Protection(authority, config.oauth, endpoint, manager) if authority else None

    def guarded(app: ASGIApp) -> NoStore:
        guard = OriginGuard(
            app,
            allowed_hosts=(*LOOPBACK_HOSTS, *_own_name(config), *config.allowed_hosts),
            allowed_origins=(*LOOPBACK_ORIGINS, *config.allowed_origins),
        )
        return NoStore(guard)

    mcp = guarded(protection.gate if protection else endpoint)
    metrics = guarded(protection.gated(transfers) if protection else transfers)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.transfers = transfers
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(manager.run())
            if protection is not None:
                await stack.enter_async_context(protection.watching())
            yield

    app = Starlette(
        routes=[
            *(Route(path, mcp) for path in (MCP_PATH, f"{MCP_PATH}/")),
            Route("/health", _health, methods=["GET"]),
            *(Route(path, transfers) for path in TransferRoutes.PATHS),
            *([Route("/metrics", metrics)] if config.transfers.metrics else ()),
            *(protection.routes if protection is not None else ()),
        ],
        lifespan=lifespan,
    )
    # A redirect would lead to whatever Host the request names, before anything has checked it.
    app.router.redirect_slashes = False
    return app


class NoStore:
    """Says that no cache keeps an answer: one may hold the secret of an upload."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [item for item in message["headers"] if item[0] != b"cache-control"]
                message = {**message, "headers": [*headers, (b"cache-control", b"no-store")]}
            await send(message)

        await self._app(scope, receive, marked)


async def _health(_request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


def _own_name(config: McpConfig) -> tuple[str, ...]:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return (f"{host}:*",)


class _Server(uvicorn.Server):
    """uvicorn, whose orderly end is the end of `serve`.

    Its own way raises the signal again afterwards, which ends the process without the interpreter's
    exit: the embedded service's directory would stay.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take the signals to stop through the loop."""
        loop = asyncio.get_running_loop()
        for number in stop_signals():
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; the queue of the kernel may be longer than what is accepted in one go."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)


async def serve_http(config: McpConfig, listener: socket.socket) -> None:
    """Serve until the process is told to stop (`stop_signals`), then end every scope.

    Raises:
        AgentSandboxError: The server cannot start: its settings, or its uploads' database.
    """
    asyncio.get_running_loop().set_exception_handler(LoopErrors())
    app = build_http_app(config, base_url(listener))
    server = _Server(
        uvicorn.Config(
            app,
            # Transfers need what h11 lets through; for the tools it is as good.
            http=StrictHTTPProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            backlog=ACCEPTS,
        )
    )
    said = logging.getLogger("uvicorn.error")

    def tells(_record: logging.LogRecord) -> bool:
        return _failed(app) is None  # of a start that failed, the error says more

    said.addFilter(tells)
    try:
        await server.serve(sockets=[listener])
    except SystemExit:  # uvicorn ends the process where an application does not start
        if failed := _failed(app):
            raise failed from None
        raise
    finally:
        said.removeFilter(tells)


def _failed(app: Starlette) -> AgentSandboxError | None:
    transfers: TransferRoutes | None = getattr(app.state, "transfers", None)
    return None if transfers is None else transfers.failed
