"""Who a call is made for, and which sandboxes are theirs."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken, principal_components
from starlette.requests import Request

METADATA_KEY = "agent-sandbox-principal"
"""Under this key a sandbox carries whose it is: every replica knows, also after a restart."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a call is made for: the id of a static token, or issuer, client and subject of OAuth.

    Attributes:
        client: The id of the static token, or the client's id at the issuer; empty where no
            credentials are asked for.
        issuer: Who issued the token; None for a static one.
        subject: Whom the client acts for; unique for each issuer only.
    """

    client: str
    issuer: str | None = None
    subject: str | None = None

    @classmethod
    def of_token(cls, token: AccessToken) -> Principal:
        """Return the principal that a verified token stands for."""
        return cls(*principal_components(token))

    @classmethod
    def of_id(cls, text: str) -> Principal | None:
        """Return the principal of an `id`, None for a text that is none."""
        kind, _, rest = text.partition(":")
        if kind == "token" and rest:
            return cls(rest)
        if kind == "oauth":
            issuer, client, subject = json.loads(rest)
            return cls(client, issuer, subject)
        return None

    @property
    def id(self) -> str:
        """One text for all of it; empty where no credentials are asked for."""
        if self.issuer is not None:
            return f"oauth:{json.dumps([self.issuer, self.client, self.subject])}"
        return f"token:{self.client}" if self.client else ""

    @property
    def tag(self) -> str:
        """What a sandbox carries: a digest, so that the service learns no name of a person."""
        return hashlib.sha256(self.id.encode()).hexdigest() if self.id else ""

    @property
    def metadata(self) -> dict[str, str]:
        """The metadata of the sandboxes that are made for this principal."""
        return {METADATA_KEY: self.tag} if self.id else {}

    def may_see(self, metadata: Mapping[str, str]) -> bool:
        """Tell from a sandbox's metadata whether it is this principal's."""
        return hmac.compare_digest(metadata.get(METADATA_KEY, "").encode(), self.tag.encode())


ANONYMOUS = Principal("")
"""The caller over STDIO, and all callers over HTTP where no credentials are asked for."""


def principal_of(request: object) -> Principal:
    """Return the principal of a transport's request, as its credentials were verified."""
    return principal_of_scope(request.scope) if isinstance(request, Request) else ANONYMOUS


def principal_of_scope(scope: MutableMapping[str, Any]) -> Principal:
    """Return the principal of an HTTP request, as its credentials were verified."""
    user = scope.get("user")
    return (
        Principal.of_token(user.access_token) if isinstance(user, AuthenticatedUser) else ANONYMOUS
    )
