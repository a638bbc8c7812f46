"""The endpoint of one download session: one GET."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from urllib.parse import quote

from starlette.types import Receive, Scope, Send

from agent_sandbox.errors import AgentSandboxError, UploadError, UploadMethodError
from agent_sandbox.http1.head import Headers
from agent_sandbox.uploads.downloading import Download
from agent_sandbox.uploads.http.answers import NO_STORE, answer, refuse
from agent_sandbox.uploads.http.checks import framing_of, secret_of
from agent_sandbox.uploads.http.origins import allow_origin, preflight
from agent_sandbox.uploads.service import UploadService

_ALLOW = "GET, OPTIONS"
_logger = logging.getLogger("agent_sandbox.uploads.http")


class DownloadEndpoint:
    """ASGI application at `/downloads/{download_id}`.

    The order of checks is that of uploads. HEAD is refused: it would use up the one GET, or tell
    something for nothing.
    """

    def __init__(self, service: UploadService) -> None:
        self._service = service
        self._config = service.config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        with self._service.under_way():
            await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        origins = self._config.allowed_origins
        cors = allow_origin(scope, origins)
        try:
            framing_of(scope)
            if scope["method"] == "OPTIONS":
                await answer(send, 204, b"", "text/plain", preflight(scope, origins, b"GET"))
                return
            if scope["method"] != "GET":
                raise UploadMethodError
            download = await self._claim(scope)
        except AgentSandboxError as error:
            self._service.refused("get", error)
            await refuse(scope, receive, send, error, allow=_ALLOW, headers=cors)
        except Exception as error:  # noqa: BLE001  # an edge: outsiders see the fixed text
            _logger.error("a download failed with %s", type(error).__name__)
            await refuse(scope, receive, send, UploadError(), headers=cors)
        else:
            await self._stream(download, receive, send, cors)

    async def _claim(self, scope: Scope) -> Download:
        download_id: str = scope["path_params"]["download_id"]
        endpoint = self._config.endpoint("download", download_id)
        secret = secret_of(scope)
        session = await self._service.authorise(download_id, endpoint, secret, kind="download")
        return await self._service.claim_download(session)

    async def _stream(
        self, download: Download, receive: Receive, send: Send, cors: Headers
    ) -> None:
        """Send the bytes. A fault leaves the answer short, which every client notices."""
        gone = asyncio.create_task(_disconnected(receive))
        try:
            async with asyncio.timeout(self._config.body_limit_s(download.size_bytes)):
                await send(_start(download, cors))
                async for chunk in download:
                    if gone.done():
                        return
                    message = {"type": "http.response.body", "body": chunk, "more_body": True}
                    async with asyncio.timeout(self._config.idle_deadline_s):
                        await send(message)
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            _logger.info("a download was too slow and was cut")
        except Exception as error:  # noqa: BLE001  # an edge: the headers are out already
            _logger.error("a download broke off with %s", type(error).__name__)
        finally:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            await download.aclose()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _start(download: Download, cors: Headers) -> dict[str, object]:
    digest = base64.b64encode(bytes.fromhex(download.sha256))
    name = quote(download.filename, safe="").encode()
    headers: Headers = [
        (b"content-type", b"application/octet-stream"),
        (b"content-length", str(download.size_bytes).encode()),
        # Only the encoded form (RFC 8187): a plain one needs quoting that clients read in ways.
        (b"content-disposition", b"attachment; filename*=UTF-8''" + name),
        (b"repr-digest", b"sha-256=:" + digest + b":"),  # RFC 9530
        (b"agent-sandbox-sha256", download.sha256.encode()),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"x-content-type-options", b"nosniff"),
        NO_STORE,
        *cors,
    ]
    return {"type": "http.response.start", "status": 200, "headers": headers}
