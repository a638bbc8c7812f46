"""The transfer endpoint of a server that has no HTTP of its own: a socket in this event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import uvicorn
from starlette.types import ASGIApp
from uvicorn.server import ServerState

from agent_sandbox.express.address import BACKLOG
from agent_sandbox.http1 import ACCEPTS
from agent_sandbox.uploads.http import uvicorn_settings
from agent_sandbox.uploads.models import UploadsConfig

END_S = 0.3
"""Time that transfers under way have when the server ends."""


@asynccontextmanager
async def listening(
    app: ASGIApp, config: UploadsConfig, listener: socket.socket
) -> AsyncIterator[None]:
    """Serve an application on a listening socket while the block runs.

    Not with `uvicorn.Server`, which takes the signals of the process and looks only ten times a
    second whether it should end. At the end transfers under way are cancelled, and each has
    written down how it ended before this returns.
    """
    strict = uvicorn_settings(config)
    settings = uvicorn.Config(app, **strict, lifespan="off", log_config=None, proxy_headers=False)
    settings.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: strict["http"](config=settings, server_state=state, app_state={}),
        sock=listener,
        backlog=ACCEPTS,
    )
    listener.listen(BACKLOG)
    try:
        yield
    finally:
        server.close()
        for connection in list(state.connections):
            connection.shutdown()
        with anyio.CancelScope(shield=True):
            if state.tasks:
                _done, running = await asyncio.wait(state.tasks, timeout=END_S)
                for task in running:
                    task.cancel()
                if running:
                    await asyncio.wait(running, timeout=END_S)
