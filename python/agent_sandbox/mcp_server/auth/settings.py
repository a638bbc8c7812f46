"""Settings of OAuth; apart from the code that uses them, whose libraries take long to import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from agent_sandbox.errors import ConfigError
from agent_sandbox.loopback import is_loopback

ALGORITHMS: dict[str, tuple[str, str | None]] = {
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
"""The kind and the curve of the key that each algorithm takes. Nothing symmetric is among them."""

MAX_SKEW_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class OAuthConfig:
    """Whose access tokens are taken, and which.

    Attributes:
        issuer: The issuer, exactly as its tokens say.
        jwks_url: Where its keys are; None asks the issuer's metadata (`discovery`).
        resource: The URL of this server's MCP endpoint, as its clients know it.
        audience: What tokens must be for; the resource by default.
        scopes: What a token must allow, all of them.
        algorithms: What may sign them; nothing symmetric.
        clock_skew_s: How far the issuer's clock may be off, 0 to 120 seconds.
        deny_file: Who is kept out; see `denied`.
    """

    issuer: str
    resource: str
    jwks_url: str | None = None
    audience: str | None = None
    scopes: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = tuple(ALGORITHMS)
    clock_skew_s: int = 30
    deny_file: Path | None = None

    def __post_init__(self) -> None:
        for name, url in (
            ("issuer", self.issuer),
            ("JWKS URL", self.jwks_url),
            ("resource", self.resource),
        ):
            if url is not None and not is_safe_url(url):
                raise ConfigError(
                    reason=f"The {name} must be an https URL (http on loopback), without"
                    " credentials and fragment."
                )
        if self.jwks_url is None and "?" in self.issuer:
            raise ConfigError(reason="An issuer with a query has no metadata: give its JWKS URL.")
        if not self.algorithms or not set(self.algorithms) <= ALGORITHMS.keys():
            raise ConfigError(reason="Algorithms are among: " + ", ".join(ALGORITHMS) + ".")
        if not 0 <= self.clock_skew_s <= MAX_SKEW_S:
            raise ConfigError(reason=f"The clock skew is 0 to {MAX_SKEW_S} seconds.")
        if not all(_is_scope(scope) for scope in self.scopes):
            raise ConfigError(reason="A scope is visible ASCII without quotes and backslashes.")


def _is_scope(value: str) -> bool:
    return bool(value) and all("!" <= char <= "~" and char not in '"\\' for char in value)


def is_safe_url(url: str) -> bool:
    """Tell whether keys may be fetched from a URL: nobody on the way can have changed them."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if not host:
        return False
    secure = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(host))
    return secure and "@" not in parts.netloc and not parts.fragment
