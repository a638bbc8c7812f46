"""Where sandboxes are: keyword arguments, else the environment, else the embedded default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from agent_sandbox.errors import ConfigError

PROVIDERS = ("local", "express", "node")

_OF_EXPRESS = ("AGENT_SANDBOX_API_URL", "AGENT_SANDBOX_API_KEY", "AGENT_SANDBOX_URL")
"""The variables that mean nothing for local sandboxes."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings that fit together.

    Attributes:
        provider: `local`, `express` or `node`.
        api_url: Base URL of the control plane; `express` has one, `local` has none, for `node` None
            is the SDK's own.
        api_key: Credential of the control plane; secret, so it has no repr.
        sandbox_url: One base URL for every sandbox's data plane, or None.
        node: The Node program of `node`; None looks on the PATH.
        node_packages: The folder of `node` whose `node_modules` holds the SDK.
    """

    provider: str
    api_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    sandbox_url: str | None = None
    node: str | None = None
    node_packages: str | None = None

    @classmethod
    def resolve(
        cls,
        *,
        provider: str | None = None,
        api_url: str | None = None,
        api_key: str | None = None,
        sandbox_url: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Settings:
        """Return the settings that arguments and environment add up to.

        An argument wins over its variable: `AGENT_SANDBOX_PROVIDER`, `AGENT_SANDBOX_API_URL`,
        `AGENT_SANDBOX_API_KEY`, `AGENT_SANDBOX_URL`. An empty variable counts as absent. Without
        a provider, an API URL means `express`, and nothing means `local`. The argument `local` wins
        over every variable. What only `node` has comes from `AGENT_SANDBOX_NODE` and
        `AGENT_SANDBOX_NODE_PACKAGES`.

        Raises:
            ConfigError: E6000, with a `reason` that repeats no value: an unknown provider,
                `express` without an API URL, `local` with what only `express` has, a key or a
                sandbox URL without an API URL, or a malformed URL or key.
        """
        env = os.environ if environ is None else environ
        given = api_url, api_key, sandbox_url
        chosen = provider is not None
        if provider is None and api_url is None:
            provider = env.get("AGENT_SANDBOX_PROVIDER") or None
        if provider is None:
            named = api_url or env.get("AGENT_SANDBOX_API_URL")
            provider = "express" if named else "local"
        if provider not in PROVIDERS:
            raise ConfigError(reason="The provider is one of: " + ", ".join(PROVIDERS) + ".")
        if provider == "local":
            if any(value is not None for value in given):
                raise ConfigError(reason="Local sandboxes have no api_url, api_key or sandbox_url.")
            if not chosen and any(env.get(name) for name in _OF_EXPRESS):
                raise ConfigError(
                    reason="Local sandboxes have no "
                    + ", ".join(_OF_EXPRESS)
                    + ": unset them, or set AGENT_SANDBOX_API_URL and no local provider."
                )
            return cls(provider="local")
        api_url = api_url or env.get("AGENT_SANDBOX_API_URL") or None
        node_packages = None
        if provider == "node":
            node_packages = env.get("AGENT_SANDBOX_NODE_PACKAGES") or None
            if node_packages is None:
                raise ConfigError(
                    reason="The node provider needs AGENT_SANDBOX_NODE_PACKAGES: the folder whose"
                    " node_modules holds the package e2b."
                )
        elif api_url is None:
            raise ConfigError(
                reason="The express provider needs an api_url (AGENT_SANDBOX_API_URL)."
            )
        sandbox_url = sandbox_url or env.get("AGENT_SANDBOX_URL") or None
        return cls(
            provider=provider,
            node=(env.get("AGENT_SANDBOX_NODE") or None) if provider == "node" else None,
            node_packages=node_packages,
            api_url=None
            if api_url is None
            else _checked_url(api_url, "api_url (AGENT_SANDBOX_API_URL)"),
            api_key=_checked_key(api_key or env.get("AGENT_SANDBOX_API_KEY") or None),
            sandbox_url=None
            if sandbox_url is None
            else _checked_url(sandbox_url, "sandbox_url (AGENT_SANDBOX_URL)"),
        )


def _checked_url(url: str, name: str) -> str:
    """Return an http or https URL without its trailing slash.

    Raises:
        ConfigError: E6000: it is none, or has a part that a base cannot have.
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not url.isascii() or any(char.isspace() for char in url):
        raise ConfigError(reason=f"{name} must be an http or https URL.")
    # Credentials in a URL end up in logs; a query or a fragment cannot be a base.
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise ConfigError(reason=f"{name} must be a URL without credentials, query or fragment.")
    return url.rstrip("/")


def _checked_key(key: str | None) -> str | None:
    """Return a key that can stand in a header: visible ASCII."""
    if key is not None and not all("!" <= char <= "~" for char in key):
        raise ConfigError(reason="api_key (AGENT_SANDBOX_API_KEY) must be visible ASCII.")
    return key
