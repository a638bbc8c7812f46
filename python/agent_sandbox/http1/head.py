"""A strict reader of HTTP/1 request heads (RFC 9112), without any I/O.

Libraries read heads leniently and differ (two Content-Length lines, a bare LF, Transfer-Encoding
beside Content-Length), and where two readers in a chain differ, one request becomes two. Here each
doubtful head is refused, so that the bytes of a body are beyond dispute before anyone counts them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_HEAD_BYTES = 67_584
"""Longest head: a secret of 64 KiB still fits, and is then an ordinary wrong one."""

MAX_HEADERS = 100
"""Most header lines of one request."""

MAX_TARGET_BYTES = 4_096
"""Longest request target, unless a server takes longer ones."""

MAX_CONTENT_LENGTH = 2**63 - 1
"""Largest Content-Length that is read as a number at all."""

Headers = list[tuple[bytes, bytes]]
"""Header lines in their order: lower-case name, value without the white space around it."""

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REQUEST_LINE = re.compile(rb"(%b) ([\x21-\x7e]+) HTTP/(\d)\.(\d)" % _TOKEN.pattern)
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#@]+)")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z\-._~%!$&'()*+,;=]*)(?::\d*)?")


class HeadError(Exception):
    """The head of a request is refused.

    Attributes:
        status: What to answer: 400, 414, 417, 431 or 505.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


@dataclass(frozen=True, slots=True)
class Framing:
    """How the body of a request is delimited.

    Attributes:
        content_length: The one declared length, or None where there is none.
        chunked: Whether `Transfer-Encoding: chunked` delimits it instead.
    """

    content_length: int | None
    chunked: bool


@dataclass(frozen=True, slots=True)
class Head:
    """One request head that is beyond dispute.

    Attributes:
        method: As sent; methods are case-sensitive.
        path: Raw path, still percent-encoded.
        query: Raw query without its question mark.
        http_version: `1.0` or `1.1`.
        headers: All header lines.
        framing: How its body ends.
        expects_continue: Whether the client waits for `100 Continue` before it sends the body.
        keep_alive: Whether the client wants to use the connection again.
    """

    method: str
    path: bytes = field(repr=False)  # these three may hold what no log may hold
    query: bytes = field(repr=False)
    http_version: str
    headers: Headers = field(repr=False)
    framing: Framing
    expects_continue: bool
    keep_alive: bool


def find_end(buffer: bytes | bytearray) -> int:
    """Return the length of the head with its empty line, or -1 where it is not complete yet.

    Raises:
        HeadError: 400 where a line does not end in CR LF, 431 where the head is too long; both
            before the head is complete.
    """
    end = buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
    seen = buffer[: end + 4] if end >= 0 else buffer[:MAX_HEAD_BYTES]
    if seen.count(b"\n") != seen.count(b"\r\n"):
        raise HeadError(400)
    if end < 0 and len(buffer) >= MAX_HEAD_BYTES:
        raise HeadError(431)
    return end + 4 if end >= 0 else -1


def parse(head: bytes, *, max_target_bytes: int = MAX_TARGET_BYTES) -> Head:
    """Read one complete head, up to and with its empty line.

    The authority of an absolute target stands in for the `Host` header (RFC 9112 section 3.2.2).

    Raises:
        HeadError: The head is refused, with the status to answer.
    """
    lines = head[:-4].split(b"\r\n")
    if len(lines) - 1 > MAX_HEADERS:
        raise HeadError(431)
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        raise HeadError(400)
    method, target, major, minor = line.groups()
    if major != b"1":
        raise HeadError(505)
    version = "1.0" if minor == b"0" else "1.1"
    if len(target) > max_target_bytes:
        raise HeadError(414)
    authority, path, query = _split_target(method, target)
    headers = [_header(each) for each in lines[1:]]
    framing = read_framing(headers, version)
    if authority:
        headers = [(b"host", authority), *(line for line in headers if line[0] != b"host")]
    connection = tokens(headers, b"connection")
    return Head(
        method=method.decode(),
        path=path,
        query=query,
        http_version=version,
        headers=headers,
        framing=framing,
        expects_continue=_expects_continue(headers, version),
        keep_alive=b"close" not in connection and (version == "1.1" or b"keep-alive" in connection),
    )


def read_framing(headers: Headers, http_version: str) -> Framing:
    """Say how a body is delimited, from headers that any server has read.

    Raises:
        HeadError: 400 where two readers could disagree: more than one Content-Length, or one that
            is no plain number below 2^63; Transfer-Encoding beside it, more than once, in
            HTTP/1.0, or other than `chunked`; no or several Host lines.
    """
    hosts = values(headers, b"host")
    if len(hosts) > 1 or (not hosts and http_version == "1.1"):
        raise HeadError(400)
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise HeadError(400)
    lengths = values(headers, b"content-length")
    codings = values(headers, b"transfer-encoding")
    if codings:
        if lengths or http_version == "1.0" or [c.lower() for c in codings] != [b"chunked"]:
            raise HeadError(400)
        return Framing(None, chunked=True)
    if not lengths:
        return Framing(None, chunked=False)
    # `isdigit` of bytes is ASCII only; 19 digits hold 2^63 - 1.
    if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > 19:
        raise HeadError(400)
    length = int(lengths[0])
    if length > MAX_CONTENT_LENGTH:
        raise HeadError(400)
    return Framing(length, chunked=False)


def values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    """Return the value of each line with this lower-case name."""
    return [value for key, value in headers if key == name]


def tokens(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> set[bytes]:
    """Return the lower-case members of a comma-separated header."""
    return {
        token.strip().lower()
        for value in values(headers, name)
        for token in value.split(b",")
        if token.strip()
    }


def _split_target(method: bytes, target: bytes) -> tuple[bytes, bytes, bytes]:
    authority = b""
    if absolute := _ABSOLUTE.match(target):
        authority = absolute[1]
        target = target[absolute.end() :]
        target = target if target.startswith(b"/") else b"/" + target
    if not (target.startswith(b"/") or (target == b"*" and method == b"OPTIONS")) or b"#" in target:
        raise HeadError(400)
    path, _, query = target.partition(b"?")
    return authority, path, query


def _header(line: bytes) -> tuple[bytes, bytes]:
    # A folded line and white space before the colon give no token; a bare CR is no value.
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise HeadError(400)
    return name.lower(), value.strip(b" \t")


def _expects_continue(headers: Headers, version: str) -> bool:
    expected = values(headers, b"expect")
    if any(value.lower() != b"100-continue" for value in expected):
        raise HeadError(417)
    return bool(expected) and version == "1.1"
