"""JSON-RPC envelopes as bytes: lines of bounded length, ids, and messages parsed once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)
from pydantic import ValidationError

from agent_sandbox.mcp_server import strict_json

DOUBTFUL = "The message names a member of an object twice, or has a number that is too large."

KEPT_BYTES = 4_096
"""How much of a long line is kept at each end, to look for its id."""

_STRING = rb'"(?:[^"\\]|\\.)*"'
_SCALAR = rb"(?:" + _STRING + rb"|-?[0-9][0-9.eE+-]*|true|false|null)"
_MEMBER = re.compile(rb"\s*(" + _STRING + rb")\s*:\s*(" + _SCALAR + rb")\s*[,}]")
_OPENING = re.compile(rb"\s*\{")
_PAIR = _STRING + rb"\s*:\s*" + _SCALAR + rb"\s*"
_TRAILING_ID = re.compile(
    rb'[,{]\s*"id"\s*:\s*(' + _SCALAR + rb")\s*(?:,\s*" + _PAIR + rb")*\}\s*\Z"
)


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line over the limit: its two ends, and nothing between them."""

    head: bytes
    tail: bytes


class LineSplitter:
    """Cuts a byte stream into lines, holding at most one line of `limit` bytes.

    Feeding any split of a stream gives the same lines as feeding it whole. The newline is not
    part of a line and does not count.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._head = b""
        self._tail = b""

    def feed(self, chunk: bytes) -> list[bytes | LongLine]:
        """Return the lines that `chunk` completes."""
        lines: list[bytes | LongLine] = []
        *complete, rest = chunk.split(b"\n")
        for piece in complete:
            self._add(piece)
            lines.append(self._take())
        if rest:
            self._add(rest)
        return lines

    def _add(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size <= self._limit:
            self._parts.append(piece)
            return
        if self._parts:  # it has just become too long
            self._head = self._tail = b"".join(self._parts)
            self._parts.clear()
        if len(self._head) < KEPT_BYTES:
            self._head += piece[:KEPT_BYTES]
        self._head = self._head[:KEPT_BYTES]
        self._tail = (self._tail[-KEPT_BYTES:] + piece[-KEPT_BYTES:])[-KEPT_BYTES:]

    def _take(self) -> bytes | LongLine:
        line: bytes | LongLine
        if self._size > self._limit:
            line = LongLine(self._head, self._tail)
        else:
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._size, self._head, self._tail = 0, b"", b""
        return line


def peek_id(head: bytes, tail: bytes) -> RequestId | None:
    """Return the top-level `id` of a JSON object from its two ends, or None if it is not there.

    It is found where only scalar members stand before or after it. For a valid object it is then
    exact: an id of a nested object, or one within a string, is never taken for it.
    """
    opening = _OPENING.match(head)
    at = opening.end() if opening else len(head)
    while (member := _MEMBER.match(head, at)) is not None:
        if member[1] == b'"id"':
            return _as_id(member[2])
        at = member.end()
    found = _TRAILING_ID.search(tail)
    return _as_id(found[1]) if found else None


def _as_id(text: bytes) -> RequestId | None:
    try:
        return readable_id(json.loads(text))
    except ValueError:
        return None


def readable_id(value: Any) -> RequestId | None:
    """Return `value` if it can be the id of a request, else None."""
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return None
        return value
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def canonical_id(request_id: RequestId) -> RequestId:
    """Return the form in which ids collide: the SDK takes `1`, `"1"`, `"01"` and `" 1"` for one."""
    try:
        return int(request_id)
    except ValueError:
        return request_id


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that is no message, and the error that answers it."""

    answer: JSONRPCError


def parse_message(line: bytes) -> JSONRPCMessage | Refusal:
    """Return the message of a line, or what answers it where there is none.

    The SDK's own adapter tries every kind of message and copies a large text for each.
    """
    try:
        value = strict_json.parse(line)
    except strict_json.NotJsonError as error:
        return Refusal(error_answer(PARSE_ERROR, f"Parse error: the line {error.reason}."))
    except strict_json.DoubtfulJsonError:
        request_id = peek_id(line[:KEPT_BYTES], line[-KEPT_BYTES:]) if _has_one_id(line) else None
        return Refusal(error_answer(INVALID_REQUEST, DOUBTFUL, request_id))
    if not isinstance(value, dict):
        return Refusal(error_answer(INVALID_REQUEST, "The message is not one JSON-RPC object."))
    kind: type[JSONRPCRequest | JSONRPCNotification | JSONRPCResponse | JSONRPCError]
    if "method" in value:
        kind = JSONRPCRequest if "id" in value else JSONRPCNotification
    else:
        kind = JSONRPCResponse if "result" in value else JSONRPCError
    try:
        return kind.model_validate(value, by_name=False)
    except ValidationError:
        request_id = readable_id(value.get("id"))
        return Refusal(
            error_answer(INVALID_REQUEST, "The message is not valid JSON-RPC 2.0.", request_id)
        )


def _has_one_id(line: bytes) -> bool:
    # Of two, either may be meant, wherever it stands. An escaped name may be one, too.
    return line.count(b'"id"') == 1 and b"\\u0069" not in line and b"\\u0064" not in line


def error_answer(code: int, message: str, request_id: RequestId | None = None) -> JSONRPCError:
    """Return an error answer with a fixed text."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))
