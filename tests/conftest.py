"""What every test sees: the event loop's backend, and which byte core is under test."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from agent_sandbox.bytestream import IMPLEMENTATION


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    """Give back what a test that sets up a server does to the loggers of the process."""
    known = [logging.getLogger(), logging.getLogger("agent_sandbox")]
    before = [(one, one.level, one.propagate, one.handlers[:], one.filters[:]) for one in known]
    yield
    for logger, level, propagate, handlers, filters in before:
        logger.setLevel(level)
        logger.propagate = propagate
        logger.handlers[:] = handlers
        logger.filters[:] = filters


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
