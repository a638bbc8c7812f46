"""Where an issuer keeps its keys, by its own metadata (RFC 8414, OpenID Connect Discovery 1.0)."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from agent_sandbox.client.documents import fetch_document
from agent_sandbox.errors import AgentSandboxError, TransferError
from agent_sandbox.mcp_server.auth.settings import is_safe_url
from agent_sandbox.mcp_server.logs import log

MAX_DOCUMENT_BYTES = 262_144
FETCH_DEADLINE_S = 5.0
"""Wall-clock seconds for the metadata and the keys together."""

KNOWN_S = 3_600.0
"""The address of the keys is asked for again after this, or when there are no keys at it."""

Fetch = Callable[[str, float], Awaitable[bytes]]


async def fetch(url: str, deadline_s: float) -> bytes:
    """Return one document of an issuer."""
    return await fetch_document(url, max_bytes=MAX_DOCUMENT_BYTES, deadline_s=deadline_s)


class KeySource:
    """Fetches the JWK set of an issuer, whose address is found where it is not configured.

    Whoever calls sees to it that this happens once at a time and not too often.

    Args:
        issuer: The issuer, exactly as its tokens and its metadata say it.
        jwks_url: Where its keys are; None asks its metadata.
        fetch_: Returns a document within some seconds.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        issuer: str,
        jwks_url: str | None,
        fetch_: Fetch = fetch,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuer = issuer
        self._configured = jwks_url
        self._fetch = fetch_
        self._clock = clock
        self._found: str | None = None
        self._found_at = float("-inf")

    async def keys(self) -> bytes:
        """Return the JWK set as it came.

        Raises:
            AgentSandboxError: It, or the metadata, cannot be fetched or is of no use.
        """
        until = self._clock() + FETCH_DEADLINE_S
        url = self._configured or await self._discovered(until)
        try:
            return await self._fetch(url, max(0.0, until - self._clock()))
        except AgentSandboxError:
            self._found = None  # it may have moved
            raise

    async def _discovered(self, until: float) -> str:
        if self._found is None or self._clock() - self._found_at > KNOWN_S:
            self._found = await self._look(until)
            self._found_at = self._clock()
        return self._found

    async def _look(self, until: float) -> str:
        failure: AgentSandboxError = TransferError()
        for url in metadata_urls(self._issuer):
            left_s = until - self._clock()
            if left_s <= 0:
                break
            try:
                document = await self._fetch(url, left_s)
            except AgentSandboxError as error:
                failure = error
                continue
            found = jwks_url_in(document, self._issuer)
            if found is not None:
                return found
            log.warning("the issuer's metadata names another issuer, or no jwks_uri that is safe")
        raise failure


def metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return where the metadata of an issuer may be, in the order in which to look."""
    parts = urlsplit(issuer)
    path = parts.path.rstrip("/")
    origin = f"{parts.scheme}://{parts.netloc}"
    urls = (
        f"{origin}/.well-known/oauth-authorization-server{path}",  # RFC 8414 section 3.1
        f"{origin}{path}/.well-known/openid-configuration",  # OpenID Connect Discovery 4
        f"{origin}/.well-known/openid-configuration{path}",  # RFC 8414 section 5
    )
    return tuple(dict.fromkeys(urls))


def jwks_url_in(document: bytes, issuer: str) -> str | None:
    """Return the address of the keys; None in metadata of somebody else, or without a safe one."""
    try:
        metadata = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(metadata, dict) or metadata.get("issuer") != issuer:
        return None  # RFC 8414 section 3.3: anything else must not be used
    url = metadata.get("jwks_uri")
    return url if isinstance(url, str) and is_safe_url(url) else None
