"""Limits of time that end in an error of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from agent_sandbox.errors import AgentSandboxError


@contextmanager
def time_limit(seconds: float, error: type[AgentSandboxError]) -> Iterator[None]:
    """Run the body for at most `seconds` of wall-clock time, else raise `error`."""
    with anyio.move_on_after(seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise error
