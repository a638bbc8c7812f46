"""Streamable HTTP: the application, and the server that runs it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import uvicorn
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from agent_sandbox.errors import ConfigError
from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.auth.protection import Protection
from agent_sandbox.mcp_server.config import McpConfig
from agent_sandbox.mcp_server.http_guard import HttpGuard
from agent_sandbox.mcp_server.http_origin import LOOPBACK_HOSTS, LOOPBACK_ORIGINS, OriginGuard
from agent_sandbox.mcp_server.logs import log_loop_error
from agent_sandbox.mcp_server.server import build_server

MCP_PATH = "/mcp"


def build_http_app(config: McpConfig) -> Starlette:
    """Return the ASGI application: MCP at `/mcp`, `/health` beside it.

    Its lifespan opens and ends the server's state, so run it with lifespan support, once. Where
    the settings name credentials, `/mcp` asks for them.

    Raises:
        ConfigError: E6000, settings that contradict each other or a file that cannot be used.
    """
    server = build_server(config)
    manager = StreamableHTTPSessionManager(
        app=_sdk.lowlevel_server(server),
        json_response=True,  # as an event, a 1 MiB download is over the official client's limit
        # The guard checks Host and Origin; the SDK's own check logs them as they came.
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        session_idle_timeout=config.idle_timeout_s,
        max_sessions=config.max_sessions,
    )
    endpoint: ASGIApp = HttpGuard(
        AuthContextMiddleware(manager.asgi_app), body_deadline_s=config.body_deadline_s
    )
    authority = config.authority()
    protection = Protection(authority, config.oauth, endpoint, manager) if authority else None
    guard = OriginGuard(
        protection.gate if protection else endpoint,
        allowed_hosts=(*LOOPBACK_HOSTS, *_own_name(config), *config.allowed_hosts),
        allowed_origins=(*LOOPBACK_ORIGINS, *config.allowed_origins),
    )

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(manager.run())
            if protection is not None:
                await stack.enter_async_context(protection.watching())
            yield

    return Starlette(
        routes=[
            Route(MCP_PATH, guard),
            Route("/health", _health, methods=["GET"]),
            *(protection.routes if protection is not None else ()),
        ],
        lifespan=lifespan,
    )


async def _health(_request: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


def _own_name(config: McpConfig) -> tuple[str, ...]:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return (f"{host}:*",)


def listening_socket(config: McpConfig) -> socket.socket:
    """Return a listening socket for the configured address.

    Raises:
        ConfigError: E6000, with a `reason`: the address cannot be used.
    """
    try:
        return _listening(config)
    except OSError as error:
        raise ConfigError(reason=_reason(error, config)) from None


def _listening(config: McpConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off on what it accepts; without,
    # each request with a body would wait 40 ms for a delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        listener.listen(128)
        listener.set_inheritable(False)
    except OSError:
        listener.close()
        raise
    return listener


def _reason(error: OSError, config: McpConfig) -> str:
    place = f"{f'[{config.host}]' if ':' in config.host else config.host}:{config.port}"
    if isinstance(error, socket.gaierror):
        return (
            f"There is no host named {config.host}: use 127.0.0.1, or an address of this machine."
        )
    if error.errno == errno.EADDRINUSE:
        return f"{place} is in use already: choose another --port, or 0 for any free one."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{config.host} is no address of this machine: use 127.0.0.1, or one that it has."
    if error.errno == errno.EACCES:
        return f"{place} needs rights that this user does not have: choose a --port from 1024 on."
    return f"{place} cannot be listened on: {os.strerror(error.errno or 0)}."


def url_of(listener: socket.socket) -> str:
    """Return the URL of the MCP endpoint on a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{MCP_PATH}"


async def serve_http(config: McpConfig, listener: socket.socket) -> None:
    """Serve until the process is told to stop (SIGINT, SIGTERM), then end every scope."""
    asyncio.get_running_loop().set_exception_handler(log_loop_error)
    server = uvicorn.Server(
        uvicorn.Config(
            build_http_app(config),
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
        )
    )
    await server.serve(sockets=[listener])
