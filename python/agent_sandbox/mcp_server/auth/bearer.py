"""The gate before `/mcp`: no request gets by without a bearer token that is good now (RFC 6750)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agent_sandbox.errors import (
    AccessError,
    CredentialsInvalidError,
    CredentialsMalformedError,
    CredentialsMissingError,
    CredentialsUncheckedError,
    ScopeMissingError,
)
from agent_sandbox.mcp_server import _sdk
from agent_sandbox.mcp_server.auth.authority import Authority
from agent_sandbox.mcp_server.http_answers import drop_body, refuse
from agent_sandbox.mcp_server.logs import log, log_unexpected
from agent_sandbox.mcp_server.principals import Principal

LOOK_S = 0.25
"""How often open requests and sessions are looked at. A right must be gone at two looks in a row:
an editor may empty a file for a moment before it writes."""

RETRY_AFTER_S = 5

_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*)", re.IGNORECASE)
_CODES: dict[type[AccessError], str] = {
    CredentialsMalformedError: "invalid_request",
    CredentialsInvalidError: "invalid_token",
    ScopeMissingError: "insufficient_scope",
}

_Right = tuple[Principal, str | None]


@dataclass(frozen=True, slots=True)
class Challenge:
    """What a refusal tells: where tokens are to be had, and what they must allow.

    Attributes:
        metadata_url: Where the protected resource metadata is (RFC 9728), if there is any.
        scopes: What an access token must allow.
    """

    metadata_url: str | None = None
    scopes: tuple[str, ...] = ()

    def header(self, error: AccessError) -> str:
        """Return the value of WWW-Authenticate."""
        parts = ['realm="agent-sandbox"']
        if type(error) in _CODES:
            parts.append(f'error="{_CODES[type(error)]}"')
        if self.scopes:
            parts.append(f'scope="{" ".join(self.scopes)}"')
        if self.metadata_url is not None:
            parts.append(f'resource_metadata="{self.metadata_url}"')
        return f"Bearer {', '.join(parts)}"


class BearerGate:
    """Lets in who shows a good token, and throws out whose rights have ended.

    The token goes no further: what comes after sees who the caller is, and not how it was proved.
    """

    def __init__(self, app: ASGIApp, authority: Authority, challenge: Challenge) -> None:
        self._app = app
        self._authority = authority
        self._challenge = challenge
        self._open: dict[anyio.CancelScope, AccessToken] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        try:
            token = await self._admitted(Headers(scope=scope))
        except AccessError as error:
            await drop_body(receive)
            await self._refuse(error, scope, receive, send)
            return
        kept = [item for item in scope["headers"] if item[0] != b"authorization"]
        scope = {**scope, "headers": kept, "user": AuthenticatedUser(token)}
        answer = _Answer(send)
        # A stream that was opened with a token ends with it; a call may finish what it began.
        ends_at = token.expires_at if scope["method"] == "GET" else None
        left_s = float("inf") if ends_at is None else ends_at - time.time()
        with anyio.move_on_after(left_s) as cancel:
            self._open[cancel] = token
            try:
                await self._app(scope, receive, answer.send)
            finally:
                del self._open[cancel]
        if cancel.cancelled_caught:
            if answer.started:
                await answer.end()
            else:
                await self._refuse(CredentialsInvalidError(), scope, receive, send)

    async def _admitted(self, headers: Headers) -> AccessToken:
        given = headers.getlist("authorization")
        if len(given) > 1:
            raise CredentialsMalformedError
        scheme, _, rest = (given or [""])[0].partition(" ")
        if scheme.lower() != "bearer":
            raise CredentialsMissingError
        shown = _BEARER.fullmatch(f"bearer {rest}")
        token = await self._authority.verify_token(shown[1]) if shown else None
        if token is None or (token.expires_at is not None and token.expires_at <= time.time()):
            raise CredentialsInvalidError
        is_static = Principal.of_token(token).issuer is None
        if not is_static and not set(self._challenge.scopes) <= set(token.scopes):
            raise ScopeMissingError
        return token

    async def _refuse(self, error: AccessError, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {"cache-control": "no-store"}
        if isinstance(error, CredentialsUncheckedError):
            headers["retry-after"] = str(RETRY_AFTER_S)
        else:
            headers["www-authenticate"] = self._challenge.header(error)
        await refuse(error.http_status, error.text, headers)(scope, receive, send)

    async def watch(self, manager: StreamableHTTPSessionManager) -> None:
        """Throw out whose rights have ended, for ever: open requests first, then sessions."""
        gone: set[_Right] = set()
        while True:
            await anyio.sleep(LOOK_S)
            try:
                owners = _sdk.owners_of_sessions(manager)
                rights = {_right_of(token) for token in self._open.values()}
                rights |= {(owner, None) for owner in owners.values()}
                before, gone = gone, {one for one in rights if not self._authority.lets_in(*one)}
                await self._throw_out(gone & before, owners, manager)
            except Exception as error:  # noqa: BLE001 - the next look must come whatever happens
                log_unexpected("watching credentials", error)

    async def _throw_out(
        self,
        rights: set[_Right],
        owners: dict[str, Principal],
        manager: StreamableHTTPSessionManager,
    ) -> None:
        if not rights:
            return
        log.warning("credentials of %d callers have ended; they are thrown out", len(rights))
        for cancel, token in list(self._open.items()):
            if _right_of(token) in rights:
                cancel.cancel()
        for session_id, owner in owners.items():
            if (owner, None) in rights:
                await _sdk.end_session(manager, session_id)


def _right_of(token: AccessToken) -> _Right:
    return Principal.of_token(token), (token.claims or {}).get("jti")


class _Answer:
    """An answer that can be ended early and in order."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self._ended = False

    async def send(self, message: Message) -> None:
        """Pass a message on."""
        if message["type"] == "http.response.start":
            self.started = True
        elif message["type"] == "http.response.body":
            self._ended = not message.get("more_body", False)
        await self._send(message)

    async def end(self) -> None:
        """End the body where it is."""
        if not self._ended:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
