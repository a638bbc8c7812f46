"""The public keys of an issuer, fetched when they are needed and kept for a while."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import jwt

from agent_sandbox.errors import AgentSandboxError, CredentialsUncheckedError
from agent_sandbox.mcp_server.auth.settings import ALGORITHMS
from agent_sandbox.mcp_server.logs import log

MAX_KEYS = 100
SMALLEST_RSA_BITS = 2_048

FRESH_S = 600.0
"""Keys are fetched again after this, so that a key that was taken back ends."""

STALE_S = 3_600.0
"""Where the issuer does not answer, the keys of its last answer count for this long."""

PAUSE_S = 5.0
"""Shortest time between two fetches, whatever tokens come."""


@dataclass(frozen=True, slots=True)
class _Key:
    kid: str | None
    kind: tuple[str, str | None]
    algorithm: str | None
    public: Any

    def fits(self, kid: str | None, algorithm: str) -> bool:
        return (
            kid in (None, self.kid)
            and self.kind == ALGORITHMS[algorithm]
            and self.algorithm in (None, algorithm)
        )


class KeySet:
    """Finds the key that a token names.

    Keys are fetched at the first token, again when they are old, and when a token names a key
    that is not among them; never more often than every 5 s, however many tokens name unknown keys.

    Args:
        fetch: Returns the JWK set (RFC 7517) as bytes.
        clock: Monotonic seconds.
    """

    def __init__(
        self, fetch: Callable[[], Awaitable[bytes]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fetch = fetch
        self._clock = clock
        self._keys: Sequence[_Key] = ()
        self._fetched_at = float("-inf")
        self._tried_at = float("-inf")
        self._fetching = anyio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> Any:
        """Return the key for a token, None where the issuer has no such key.

        A token without `kid` fits only where one key can be meant.

        Raises:
            CredentialsUncheckedError: E8005, the issuer's keys are not known.
        """
        age = self._clock() - self._fetched_at
        key = self._match(kid, algorithm)
        if age > STALE_S or key is None:
            await self._refresh()
        elif age > FRESH_S and not self._fetching.locked():
            await self._refresh()  # this one call waits; those beside it go on with what is known
        if self._clock() - self._fetched_at > STALE_S:
            raise CredentialsUncheckedError
        return self._match(kid, algorithm)

    def _match(self, kid: str | None, algorithm: str) -> Any:
        fitting = [key for key in self._keys if key.fits(kid, algorithm)]
        return fitting[0].public if fitting and (kid is not None or len(fitting) == 1) else None

    async def _refresh(self) -> None:
        # Shielded: who hangs up must not use the pause up without a fetch.
        with anyio.CancelScope(shield=True):
            async with self._fetching:
                if self._clock() - self._tried_at < PAUSE_S:
                    return
                try:
                    self._keys = read_keys(await self._fetch())
                    self._fetched_at = self._clock()
                except (AgentSandboxError, ValueError, RecursionError) as error:
                    log.warning("the issuer's keys cannot be fetched (%s)", type(error).__name__)
                finally:
                    self._tried_at = self._clock()


def read_keys(document: bytes) -> list[_Key]:
    """Return the keys of a JWK set that can be used to check signatures.

    Other kinds, symmetric and private keys, keys for other uses and short RSA keys are passed over.

    Raises:
        ValueError: It is no JWK set.
    """
    found = json.loads(document)
    keys = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(keys, list):
        raise ValueError
    return [key for value in keys[:MAX_KEYS] if (key := _read_key(value)) is not None]


def _read_key(value: Any) -> _Key | None:
    if not isinstance(value, dict) or "d" in value:
        return None
    kid, algorithm = value.get("kid"), value.get("alg")
    operations = value.get("key_ops", ["verify"])
    named = value.get("kty"), value.get("crv")
    kind = next((kind for kind in ALGORITHMS.values() if kind == named), None)
    if (
        kind is None
        or not isinstance(kid, str | None)
        or not isinstance(algorithm, str | None)
        or value.get("use", "sig") != "sig"
        or not isinstance(operations, list)
        or "verify" not in operations
        or (algorithm is not None and algorithm not in ALGORITHMS)
    ):
        return None
    try:
        public = jwt.PyJWK(value).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    if kind[0] == "RSA" and public.key_size < SMALLEST_RSA_BITS:
        return None
    return _Key(kid, kind, algorithm, public)
