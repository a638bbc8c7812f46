"""The endpoint of one upload session: the agent's PUT, and a page for people."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from starlette.types import Message, Receive, Scope, Send

from agent_sandbox.errors import (
    AgentSandboxError,
    UploadBodyTimeoutError,
    UploadBusyError,
    UploadError,
    UploadMethodError,
    UploadRevokedError,
)
from agent_sandbox.http1.head import Framing, Headers
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.http.answers import answer, answer_json, refuse
from agent_sandbox.uploads.http.body import Body
from agent_sandbox.uploads.http.checks import body_fits, framing_of, secret_of
from agent_sandbox.uploads.http.origins import allow_origin, preflight
from agent_sandbox.uploads.http.page import CONTENT_SECURITY_POLICY, PAGE
from agent_sandbox.uploads.models import StoredUpload, UploadSession
from agent_sandbox.uploads.service import UploadService

_ALLOW = "GET, HEAD, OPTIONS, PUT"
_PAGE_HEADERS: Headers = [
    (b"content-security-policy", CONTENT_SECURITY_POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
    (b"x-robots-tag", b"noindex"),
]
_logger = logging.getLogger("agent_sandbox.uploads.http")


class UploadEndpoint:
    """ASGI application at `/uploads/{upload_id}`.

    The order of checks: framing 400; method 405 (GET and HEAD give one page for any id); secret
    401; id, secret and endpoint 404; state 409 or 410; encoding 415; length 411, 413, 400. Only
    then the attempt is taken, and the body is read.
    """

    def __init__(self, service: UploadService) -> None:
        self._service = service
        self._config = service.config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        progress = _Progress(asyncio.get_running_loop().time())
        with self._service.under_way():
            try:
                await self._serve(scope, receive, progress.noting(send), progress)
            except asyncio.CancelledError:
                # The server stops. What became of the attempt is written down by now.
                if progress.refusal is not None or not progress.answered:
                    await to_its_end(self._interrupted(scope, receive, send, progress))
                raise

    async def _serve(self, scope: Scope, receive: Receive, send: Send, progress: _Progress) -> None:
        try:
            framing = framing_of(scope)
            method = scope["method"]
            if method in ("GET", "HEAD"):
                await answer(send, 200, PAGE, "text/html; charset=utf-8", _PAGE_HEADERS)
                return
            if method == "OPTIONS":
                origins = self._config.allowed_origins
                await answer(send, 204, b"", "text/plain", preflight(scope, origins, b"PUT"))
                return
            if method != "PUT":
                raise UploadMethodError
            stored = await self._put(scope, receive, send, framing, progress)
        except AgentSandboxError as error:
            await (progress.refusal or self._refuse(scope, receive, send, error, progress))
        except Exception as error:  # noqa: BLE001  # an edge: outsiders see the fixed text
            _logger.error("a PUT failed with %s", type(error).__name__)
            unknown = UploadError()
            await (progress.refusal or self._refuse(scope, receive, send, unknown, progress))
        else:
            await self._confirm(scope, send, stored)

    async def _confirm(self, scope: Scope, send: Send, stored: StoredUpload) -> None:
        payload = {
            "upload_id": stored.upload_id,
            "state": str(stored.state),
            "size_bytes": stored.size_bytes,
            "sha256": stored.sha256,
        }
        await answer_json(send, 200, payload, self._cors(scope))

    async def _interrupted(
        self, scope: Scope, receive: Receive, send: Send, progress: _Progress
    ) -> None:
        if progress.refusal is not None:
            await progress.refusal
            return
        try:
            if progress.session is None:
                raise UploadBusyError
            stored = await self._service.outcome(progress.session)
        except AgentSandboxError as error:
            await self._refuse(scope, receive, send, error, progress)
        else:
            await self._confirm(scope, send, stored)

    async def _put(
        self, scope: Scope, receive: Receive, send: Send, framing: Framing, progress: _Progress
    ) -> StoredUpload:
        secret = secret_of(scope)
        upload_id: str = scope["path_params"]["upload_id"]
        endpoint = self._config.endpoint("upload", upload_id)
        session = await self._service.authorise(upload_id, endpoint, secret)
        progress.session, progress.state = session, str(session.state)
        body_fits(scope, framing, session, self._config)
        attempt = await self._service.claim(session)
        progress.state = "failed"

        def late() -> None:
            # Cut at the deadline, however long it then takes to write down that it failed.
            refusal = self._refuse(scope, receive, send, UploadBodyTimeoutError(), progress)
            progress.refusal = asyncio.create_task(refusal)

        body = Body(
            scope,
            receive,
            session.size_bytes,
            idle_s=self._config.idle_deadline_s,
            end=progress.started + attempt.deadline_s,
            late=late,
        )
        return await self._service.receive(attempt, body)

    async def _refuse(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        error: AgentSandboxError,
        progress: _Progress,
    ) -> None:
        self._service.refused("put", error)
        known = progress.state
        if known == "failed" and type(error) is UploadError:
            known = None  # the store did not say how it ended
        if known == "failed" and isinstance(error, UploadRevokedError):
            known = "revoked"  # while the body came in
        await refuse(
            scope, receive, send, error, state=known, allow=_ALLOW, headers=self._cors(scope)
        )

    def _cors(self, scope: Scope) -> Headers:
        return allow_origin(scope, self._config.allowed_origins)


@dataclass
class _Progress:
    """How far a PUT has come.

    Attributes:
        started: When its head was read, on the loop's clock; its deadlines count from here.
        state: What a refusal may tell: nothing, `pending`, or `failed` once the attempt was begun.
        refusal: The answer under way, where a deadline was missed.
        session: As it was when the request was admitted.
        answered: Whether an answer has begun.
    """

    started: float
    state: str | None = None
    refusal: asyncio.Task[None] | None = None
    session: UploadSession | None = None
    answered: bool = False

    def noting(self, send: Send) -> Send:
        """Return `send`, which notes that an answer has begun."""

        async def noted(message: Message) -> None:
            self.answered = True
            await send(message)

        return noted
