"""What a call did, as a value that can be compared between implementations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def outcome(work: Callable[..., Any], *args: Any, **options: Any) -> tuple[Any, ...]:
    """Return the result with its type, or the error's type, text and attributes."""
    try:
        result = work(*args, **options)
    except Exception as error:  # noqa: BLE001  # whatever was raised is what is compared
        return (type(error), str(error), vars(error))
    return (type(result), result)
