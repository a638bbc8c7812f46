"""JSON that means one thing to every reader, and whose parsing costs a bounded time.

RFC 8259 leaves open what two equal names in one object mean, and how large a number may be. What
two parsers read differently is refused here: a proxy, a log or the SDK might have judged the other
meaning. A message of millions of tiny values, which holds the event loop up for seconds, is refused
before it is parsed.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import pydantic_core

MAX_VALUES = 10_000
"""Values in one message; a call of any tool has some twenty."""

MAX_DEPTH = 200
"""Levels of one message, as the fast parser has it."""

_INFINITIES = (float("inf"), float("-inf"))


class NotJsonError(ValueError):
    """It is no JSON text in UTF-8 without a byte order mark."""

    reason = "is not valid JSON"


class TooMuchJsonError(NotJsonError):
    """It has so many values that it is not parsed."""

    reason = f"has more than {MAX_VALUES:,} values"


class DoubtfulJsonError(ValueError):
    """It is JSON that readers take differently."""


def parse(data: bytes, *, lone_surrogates: bool = False) -> Any:
    """Return the value of a JSON text.

    Refused are NaN and Infinity, names said twice in an object, numbers beyond a double or of more
    than 4,300 digits, lone surrogates, more than 200 levels, more than 10,000 values, and every
    encoding but UTF-8 without a byte order mark.

    Args:
        data: The text.
        lone_surrogates: Let escapes of those through, for a reader that says where one stands.

    Raises:
        NotJsonError: It is no JSON, is too deep, or has too many values.
        DoubtfulJsonError: A name stands twice in an object, or a number is too large.
    """
    structure = _outside_strings(data)
    if sum(map(structure.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise TooMuchJsonError
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False)
    except ValueError:
        if not lone_surrogates or b"\\u" not in data:
            raise NotJsonError from None
        value = _parse_with_surrogates(data)
    if _count_members(value) != structure.count(b":"):
        raise DoubtfulJsonError
    return value


def _outside_strings(data: bytes) -> bytes:
    # Pairs first, from the left: what is left of a run is one backslash, or none, before a quote.
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(data.split(b'"')[::2])


def _parse_with_surrogates(data: bytes) -> Any:
    try:
        return json.loads(data.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise NotJsonError from None


def _refuse(_constant: str) -> NoReturn:
    raise NotJsonError


def _count_members(value: Any) -> int:
    """Count the members of all objects: names said twice are missing among them."""
    members = depth = 0
    level = [value]
    while level:
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                members += len(one)
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif one in _INFINITIES:
                raise DoubtfulJsonError
        level = below
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise NotJsonError
    return members
