"""Whom the server lets in now: static tokens, and the access tokens of one issuer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp.server.auth.provider import AccessToken, TokenVerifier

from agent_sandbox.mcp_server.auth.denied import DenyList
from agent_sandbox.mcp_server.auth.settings import OAuthConfig
from agent_sandbox.mcp_server.auth.tokens import PREFIX, StaticTokens
from agent_sandbox.mcp_server.principals import Principal

if TYPE_CHECKING:
    from agent_sandbox.mcp_server.auth.access_tokens import AccessTokens

MAX_TOKEN_CHARS = 16_384
"""Longer ones are refused unread."""


class Authority(TokenVerifier):
    """Verifies bearer tokens, and says later whether their bearers may still be here.

    Args:
        tokens: The static tokens, if there are any.
        oauth: Whose access tokens are taken, if any.

    Raises:
        ConfigError: E6000, with a `reason`: a file cannot be used.
    """

    def __init__(self, tokens: StaticTokens | None, oauth: OAuthConfig | None) -> None:
        self._tokens = tokens
        self._access: AccessTokens | None = None
        self._denied = DenyList.open(oauth.deny_file if oauth is not None else None)
        if oauth is not None:
            # Here and not above: the library for signatures takes long to import.
            from agent_sandbox.mcp_server.auth.access_tokens import AccessTokens

            self._access = AccessTokens(oauth)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return what a token says, None where it lets nobody in. The token itself is not kept.

        Raises:
            CredentialsUncheckedError: E8005, the issuer's keys are not known.
        """
        if len(token) > MAX_TOKEN_CHARS:
            return None
        if token.startswith(PREFIX):
            token_id = self._tokens.find(token) if self._tokens is not None else None
            return AccessToken(token="", client_id=token_id, scopes=[]) if token_id else None
        found = await self._access.verify(token) if self._access is not None else None
        return found if found is not None and self.is_live(found) else None

    def is_live(self, token: AccessToken) -> bool:
        """Tell whether the bearer of a verified token is still let in. Expiry is not looked at."""
        return self.lets_in(Principal.of_token(token), (token.claims or {}).get("jti"))

    def lets_in(self, principal: Principal, jti: str | None = None) -> bool:
        """Tell whether a principal is let in now, with some token."""
        if principal.issuer is None:
            return self._tokens is not None and self._tokens.holds(principal.client)
        return not self._denied.names(principal, jti)
