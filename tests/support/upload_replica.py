"""A replica in a process of its own: the routes of uploads, and `/create` and `/place`.

The latter two are what a server of MCP tools offers. `python -m tests.support.upload_replica` reads
its job as one JSON line (`store`, `blobs`, and maybe `settings`, `hashed` and `log`) and prints its
port. Every answer names the process in `replica`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route
from tests.support.upload_parts import ME, Sink, config
from tests.support.upload_worker import parts

from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.uploads.http import upload_routes, uvicorn_settings
from agent_sandbox.uploads.metrics import metrics_route
from agent_sandbox.uploads.service import UploadService


async def main(job: dict[str, Any]) -> None:
    """Serve until the process is ended."""
    if job.get("log"):
        logging.basicConfig(level=logging.DEBUG)  # to standard error, everything there is
    store, blobs = parts(job)
    settings = config(**job.get("settings", {}))
    service = UploadService(settings, store, blobs, hashed=job.get("hashed", True))

    async def create(request: Request) -> JSONResponse:
        session, secret = await service.create(ME, **await request.json())
        return JSONResponse({"id": session.upload_id, "path": session.endpoint, "secret": secret})

    async def place(request: Request) -> JSONResponse:
        given = await request.json()
        sink = Sink()
        try:
            placed = await service.place(ME, given["id"], sink, given["path"])
        except AgentSandboxError as error:
            return JSONResponse({"code": error.code}, error.http_status)
        wrote = sink.written.get(given["path"], b"").hex()
        return JSONResponse(
            {"path": placed.target.path, "replayed": placed.replayed, "wrote": wrote}
        )

    routes: list[BaseRoute] = [
        Route("/create", create, methods=["POST"]),
        Route("/place", place, methods=["POST"]),
        metrics_route(service),
    ]
    app = Starlette(routes=[*routes, *upload_routes(service)])
    listener = socket.create_server(("127.0.0.1", 0), backlog=2_048)
    print(listener.getsockname()[1], flush=True)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            lifespan="off",
            headers=[("replica", str(os.getpid()))],
            **uvicorn_settings(settings),
        )
    )
    await server.serve([listener])


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.stdin.readline())))
