"""Arguments, checked before any request."""

from __future__ import annotations

import re

from agent_sandbox.errors import ArgumentError, SandboxNotFoundError
from agent_sandbox.limits import DEFAULT_TTL_S, MAX_TTL_S

LONGEST_S = 9_999_999.0
"""A longer time is taken for this one, 115 days: the header of a command has ten digits of
milliseconds, clocks overflow somewhere above, and no sandbox lives so long."""

_SANDBOX_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}", re.ASCII)


def checked_max_bytes(max_bytes: int | None) -> int | None:
    """Return a bound.

    Raises:
        TypeError: It is neither an int nor None; a bool is no size.
        ValueError: It is negative.
        OverflowError: It is 2^64 or more.
    """
    if max_bytes is None:
        return None
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int):
        raise TypeError("max_bytes must be an int or None")
    if max_bytes < 0:
        raise ValueError("max_bytes must not be negative")
    if max_bytes >= 1 << 64:
        raise OverflowError("max_bytes must be less than 2^64")
    return max_bytes


def checked_deadline(deadline_s: float | None) -> float | None:
    """Return a deadline; see `checked_seconds`."""
    return checked_seconds("deadline_s", deadline_s)


def checked_seconds(name: str, value: float | None) -> float | None:
    """Return a time in seconds, `LONGEST_S` at most; None is no bound.

    Raises:
        TypeError: It is neither a number nor None.
        ValueError: It is not positive and finite.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number or None")
    if not 0 < value < float("inf"):
        raise ValueError(f"{name} must be positive")
    return float(min(value, LONGEST_S))


def checked_ttl(ttl_seconds: int | None) -> int:
    """Return a life in seconds, the default for None.

    Raises:
        ArgumentError: E2001: not an int from 1 to `MAX_TTL_S`.
    """
    if ttl_seconds is None:
        return DEFAULT_TTL_S
    if isinstance(ttl_seconds, bool) or not isinstance(ttl_seconds, int):
        raise ArgumentError
    if not 1 <= ttl_seconds <= MAX_TTL_S:
        raise ArgumentError
    return ttl_seconds


def checked_sandbox_id(sandbox_id: str) -> str:
    """Return an id that can stand in a URL and in a header as it is.

    Raises:
        SandboxNotFoundError: E5001: no service gives such an id, so there is no such sandbox.
    """
    if not isinstance(sandbox_id, str) or not is_sandbox_id(sandbox_id):
        raise SandboxNotFoundError
    return sandbox_id


def is_sandbox_id(text: str) -> bool:
    """Tell whether a text has the form of an id."""
    return _SANDBOX_ID.fullmatch(text) is not None
