"""Who a call is made for, and which sandboxes are theirs."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass

from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import principal_components
from starlette.requests import Request

METADATA_KEY = "agent-sandbox-principal"
"""Under this key a sandbox carries whose it is: every replica knows, also after a restart."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Who a call is made for.

    Attributes:
        id: `token:` and the id of a static token; `oauth:` and issuer, client and subject; the
            empty text for everyone who needs no credentials (STDIO, HTTP without them).
    """

    id: str

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
    user = request.scope.get("user") if isinstance(request, Request) else None
    if not isinstance(user, AuthenticatedUser):
        return ANONYMOUS
    client, issuer, subject = principal_components(user.access_token)
    if issuer is None:
        return Principal(f"token:{client}")
    return Principal(f"oauth:{json.dumps([issuer, client, subject])}")
