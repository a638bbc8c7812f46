"""OAuth 2.1 access tokens: JWTs of one issuer, for this server alone (RFC 9068, RFC 8725)."""

from __future__ import annotations

from typing import Any, TypeGuard

import jwt
from mcp.server.auth.provider import AccessToken

from agent_sandbox.mcp_server.auth.discovery import KeySource
from agent_sandbox.mcp_server.auth.keys import KeySet
from agent_sandbox.mcp_server.auth.settings import OAuthConfig

MAX_NAME_CHARS = 512

_TYPES = (None, "jwt", "at+jwt", "application/at+jwt")
"""Other types are tokens for other purposes, signed with the same keys."""

_CLIENT_CLAIMS = ("client_id", "azp", "cid", "appid")
"""Where issuers write the client: RFC 9068 first, then what widespread ones use instead."""


class AccessTokens:
    """Checks the access tokens of one issuer."""

    def __init__(self, config: OAuthConfig) -> None:
        self._config = config
        self._keys = KeySet(KeySource(config.issuer, config.jwks_url).keys)

    async def verify(self, token: str) -> AccessToken | None:
        """Return what a token says, without the token; None where it is not valid here.

        Checked are: the type, the algorithm against the list, the key's kind against the
        algorithm, the signature, issuer, audience, expiry, the times before which it is not valid,
        and that subject and client are there. Keys and URLs that the token itself brings are never
        looked at. Scopes are the caller's to check.

        Raises:
            CredentialsUncheckedError: E8005, the issuer's keys are not known.
        """
        config = self._config
        try:
            header = jwt.get_unverified_header(token)
            algorithm = header.get("alg")
            if (
                algorithm not in config.algorithms
                or _type_of(header) not in _TYPES
                or not header.keys().isdisjoint({"crit", "b64"})
            ):
                return None
            key = await self._keys.find(header.get("kid"), algorithm)
            if key is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=config.audience or config.resource,
                issuer=config.issuer,
                leeway=config.clock_skew_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return None
        return self._accepted(claims)

    def _accepted(self, claims: dict[str, Any]) -> AccessToken | None:
        expires, subject, jti = claims["exp"], claims["sub"], claims.get("jti")
        client = next((claims[name] for name in _CLIENT_CLAIMS if name in claims), None)
        if (
            not isinstance(expires, int | float)
            or isinstance(expires, bool)
            or not _is_name(subject)
            or not _is_name(client)
        ):
            return None
        return AccessToken(
            token="",  # nothing that runs after this needs the secret
            client_id=client,
            scopes=_scopes_of(claims),
            expires_at=int(expires) + self._config.clock_skew_s,
            resource=self._config.resource,
            subject=subject,
            claims={"iss": self._config.issuer, "jti": jti},
        )


def _scopes_of(claims: dict[str, Any]) -> list[str]:
    found = claims.get("scope", claims.get("scp"))
    if isinstance(found, str):
        return found.split(" ")
    if isinstance(found, list):
        return [scope for scope in found if isinstance(scope, str)]
    return []


def _type_of(header: dict[str, Any]) -> Any:
    kind = header.get("typ")
    return kind.lower() if isinstance(kind, str) else kind


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME_CHARS
