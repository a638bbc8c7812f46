"""Strict Base64 (RFC 4648 section 4), alone and with the sha256 of the raw bytes."""

from __future__ import annotations

import binascii
import hashlib
import re
from typing import Final, cast

from agent_sandbox.bytestream._python.arguments import Octets, is_str, size_of, snapshot, u64
from agent_sandbox.errors import Base64Error, SizeLimitError

_STR_OFFENDER: Final = re.compile(r"[^A-Za-z0-9+/]")
_BYTES_OFFENDER: Final = re.compile(rb"[^A-Za-z0-9+/]")

# Last symbols whose unused bits are zero, by the number of padding symbols behind them.
_CANONICAL_LAST: Final = {1: frozenset(b"AEIMQUYcgkosw048"), 2: frozenset(b"AQgw")}


def b64decode(data: str | Octets, /, *, max_bytes: int | None = None) -> bytes:
    """Decode canonical Base64, or refuse it: no input is repaired.

    Standard alphabet, length a multiple of 4, padding exactly where due, unused trailing bits
    zero. With `max_bytes` the checks come in this order: encoded length over
    `4 * ceil(max_bytes / 3)`; length not a multiple of 4; decoded size, as the padding tells it,
    over the bound; then the symbols. Nothing is allocated for the result before the last step.
    A `str` counts in code points. Source: RFC 4648 sections 3.5 and 4.

    Args:
        data: The text. A `memoryview` must be C-contiguous and of single bytes.
        max_bytes: Most bytes that the result may have; None for no bound.

    Raises:
        Base64Error: E2003, with the `offset` of the first offending symbol; the length of the
            input where the length is wrong; the last symbol where its unused bits are not zero.
        SizeLimitError: E3001, with the `limit`.
        TypeError: `data` or `max_bytes` is of another type (`bool` is no `int` here).
        ValueError: `max_bytes` is negative.
        OverflowError: `max_bytes` is 2**64 or more.
    """
    length = str.__len__(data) if is_str(data) else size_of(data, "data", or_str=True)
    cap = None if max_bytes is None else u64(max_bytes, "max_bytes", "an int or None")
    if cap is not None and length > 4 * -(-cap // 3):
        raise SizeLimitError(cap)
    # Beyond this line every step works on one immutable snapshot.
    text = str.__str__(data) if is_str(data) else snapshot(cast("Octets", data))
    return _decode(text, cap)


def b64encode(data: Octets, /) -> str:
    """Encode bytes as canonical Base64: padded, without line breaks (RFC 4648 section 4).

    Args:
        data: The bytes. A `memoryview` must be C-contiguous and of single bytes.

    Raises:
        TypeError: `data` is of another type.
    """
    size_of(data, "data")
    return binascii.b2a_base64(snapshot(data), newline=False).decode("ascii")


def b64decode_sha256(data: str | Octets, /, *, max_bytes: int | None = None) -> tuple[bytes, str]:
    """Decode like `b64decode`, and give the lower-case hex sha256 of the decoded bytes with them.

    Args:
        data: As for `b64decode`.
        max_bytes: As for `b64decode`.

    Raises:
        Base64Error: E2003, as `b64decode`.
        SizeLimitError: E3001, as `b64decode`.
        TypeError: As `b64decode`.
        ValueError: As `b64decode`.
        OverflowError: As `b64decode`.
    """
    raw = b64decode(data, max_bytes=max_bytes)
    return raw, hashlib.sha256(raw).hexdigest()


def b64encode_sha256(data: Octets, /) -> tuple[str, str]:
    """Encode like `b64encode`, and give the lower-case hex sha256 of the raw bytes with it.

    Args:
        data: As for `b64encode`.

    Raises:
        TypeError: `data` is of another type.
    """
    size_of(data, "data")
    raw = snapshot(data)
    return binascii.b2a_base64(raw, newline=False).decode("ascii"), hashlib.sha256(raw).hexdigest()


def _decode(text: str | bytes, cap: int | None) -> bytes:
    length = len(text)
    if cap is not None and length > 4 * -(-cap // 3):
        raise SizeLimitError(cap)  # grew between the first look and the snapshot
    if length % 4:
        raise Base64Error(length)
    padding = (text[-1:] in ("=", b"=")) + (text[-2:] in ("==", b"=="))
    size = length // 4 * 3 - padding
    if cap is not None and size > cap:
        raise SizeLimitError(cap)
    raw: bytes | None
    try:
        raw = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:  # binascii.Error, or a str that is not ASCII
        raw = None
    if raw is None or len(raw) != size:  # strict_mode lets some surplus padding pass
        raise Base64Error(_first_offender(text, length - padding))
    if padding:
        last = length - padding - 1
        symbol = ord(text[last]) if isinstance(text, str) else text[last]
        if symbol not in _CANONICAL_LAST[padding]:
            raise Base64Error(last)
    return raw


def _first_offender(text: str | bytes, end: int) -> int:
    # Up to two `=` at the end are padding; everything before them must be of the alphabet.
    match = (
        _STR_OFFENDER.search(text, 0, end)
        if isinstance(text, str)
        else _BYTES_OFFENDER.search(text, 0, end)
    )
    return end if match is None else match.start()
