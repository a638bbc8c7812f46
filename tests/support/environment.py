"""The variables by which the environment decides where sandboxes are, and which way leads there."""

from __future__ import annotations

import pytest

SETTINGS = frozenset(
    {
        "AGENT_SANDBOX_PROVIDER",
        "AGENT_SANDBOX_API_URL",
        "AGENT_SANDBOX_API_KEY",
        "AGENT_SANDBOX_URL",
        "AGENT_SANDBOX_NODE",
        "AGENT_SANDBOX_NODE_PACKAGES",
    }
)

PROXIES = frozenset(
    name
    for scheme in ("http", "https", "all", "no")
    for name in (f"{scheme}_proxy", f"{scheme}_PROXY".upper())
)


def without(monkeypatch: pytest.MonkeyPatch, names: frozenset[str]) -> None:
    """Remove variables for the time of a test."""
    for name in names:
        monkeypatch.delenv(name, raising=False)
