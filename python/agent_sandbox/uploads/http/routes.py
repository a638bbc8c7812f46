"""The routes to mount on a Starlette application, and how to run it."""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from agent_sandbox.errors import UploadNotFoundError
from agent_sandbox.http1.protocol import StrictHTTPProtocol
from agent_sandbox.uploads.guidance import llms_txt
from agent_sandbox.uploads.http.answers import answer, refuse
from agent_sandbox.uploads.http.downloads import DownloadEndpoint
from agent_sandbox.uploads.http.origins import allow_origin
from agent_sandbox.uploads.http.uploads import UploadEndpoint
from agent_sandbox.uploads.models import UploadsConfig
from agent_sandbox.uploads.service import UploadService


def upload_routes(service: UploadService) -> list[BaseRoute]:
    """Return the routes of uploads, downloads and `/llms.txt`.

    The paths are those of the service's configuration, from the root of the application. Run the
    application with `uvicorn_settings`, or behind a proxy that bounds heads and times itself:
    under another protocol class every check of the routes holds, but not the deadline of the
    head, and what the server repairs silently cannot be seen.
    """
    config = service.config
    return [
        Route(config.upload_path + "/{upload_id}", UploadEndpoint(service)),
        Route(config.download_path + "/{download_id}", DownloadEndpoint(service)),
        # Without these a slash too many or too few would be redirected, with the body on its way,
        # to where the Host header says.
        *(
            Route(path + rest, _NotFound(config))
            for path in (config.upload_path, config.download_path)
            for rest in ("", "/{rest:path}")
        ),
        Route("/llms.txt", _Guide(config)),
    ]


def uvicorn_settings(config: UploadsConfig) -> dict[str, Any]:
    """Return keyword arguments for `uvicorn.Config` that make the HTTP layer strict.

    The access log is off: a careless client's query may hold what no log may hold.
    """
    protocol = type(
        "ConfiguredHTTPProtocol",
        (StrictHTTPProtocol,),
        {"header_deadline_s": config.header_deadline_s, "write_idle_s": config.idle_deadline_s},
    )
    return {"http": protocol, "ws": "none", "access_log": False, "server_header": False}


class _NotFound:
    """Whatever lies below a transfer path and is no session: the same answer as an unknown one."""

    def __init__(self, config: UploadsConfig) -> None:
        self._origins = config.allowed_origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = allow_origin(scope, self._origins)
        await refuse(scope, receive, send, UploadNotFoundError(), headers=headers)


class _Guide:
    """`/llms.txt`: how an agent moves files here."""

    def __init__(self, config: UploadsConfig) -> None:
        self._body = llms_txt(config.public_url, config.max_size_bytes).encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, 200, self._body, "text/markdown; charset=utf-8", ())
