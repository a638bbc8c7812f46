"""What every test sees: the event loop's backend, and which byte core is under test."""

from __future__ import annotations

import os

import pytest

from agent_sandbox.bytestream import IMPLEMENTATION


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_report_header() -> str:
    return f"agent_sandbox.bytestream: {IMPLEMENTATION}"


def pytest_sessionstart() -> None:
    """Refuse to test another byte core than the one that was asked for.

    `AGENT_SANDBOX_EXPECT=native` (set in CI) makes a missing native module a failure; without it
    a whole suite could pass on the fallback and nobody would notice.
    """
    expected = os.environ.get("AGENT_SANDBOX_EXPECT", IMPLEMENTATION)
    if expected != IMPLEMENTATION:
        pytest.exit(f"bytestream is {IMPLEMENTATION}, the run wants {expected}", returncode=3)
