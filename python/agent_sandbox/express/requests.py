"""Reading requests strictly: query, headers, bounded bodies, and who may do what."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterable
from typing import TypeVar
from urllib.parse import parse_qsl

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from agent_sandbox.errors import (
    ArgumentError,
    AuthenticationError,
    PathError,
    SizeLimitError,
    TransferError,
    TransferTimeoutError,
    UnsupportedError,
)
from agent_sandbox.express.sandbox import Sandbox
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.limits import HTTP_BODY_DEADLINE_S, MAX_PATH_BYTES
from agent_sandbox.wire import headers

MAX_BODY_BYTES = 65_536
"""Longest body of a control-plane request and of an RPC; both hold no more than paths and names."""

_MessageT = TypeVar("_MessageT", bound=BaseModel)

USERS = frozenset({"", "user", "root"})
"""User names that a caller may give; none of them has other rights than the sandbox's user."""

_MAX_QUERY_FIELDS = 32
_MAX_EXPIRY_DIGITS = 16
_MAX_DIGITS = 12


def query(request: Request) -> dict[str, str]:
    """Return the query's fields, percent-decoded once.

    Raises:
        ArgumentError: E2001: a field comes twice, or there are too many.
        PathError: E2002: the bytes are not UTF-8.
    """
    raw: bytes = request.scope["query_string"]
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            errors="strict",
            max_num_fields=_MAX_QUERY_FIELDS,
        )
    except UnicodeError:
        raise PathError from None
    except ValueError:
        raise ArgumentError from None
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ArgumentError
    return fields


def header(request: Request, name: str) -> bytes | None:
    """Return the raw value of a header, None where it is absent.

    Raises:
        ArgumentError: E2001: the header comes twice.
    """
    wanted = name.encode()
    values = [value for key, value in request.scope["headers"] if key == wanted]
    if len(values) > 1:
        raise ArgumentError
    return values[0] if values else None


def whole_number(request: Request, name: str) -> int | None:
    """Return a header's whole number, None where it is absent.

    Raises:
        ArgumentError: E2001: it is none, or has more than 12 digits.
    """
    value = header(request, name)
    if value is None:
        return None
    if not value.isdigit() or len(value) > _MAX_DIGITS:
        raise ArgumentError
    return int(value)


def list_header(request: Request, name: str) -> bytes:
    """Return a header whose value is a list, its lines joined (RFC 9110 section 5.3)."""
    wanted = name.encode()
    return b", ".join(value for key, value in request.scope["headers"] if key == wanted)


async def body(request: Request, limit: int = MAX_BODY_BYTES) -> bytes:
    """Return a body of at most `limit` bytes.

    Raises:
        SizeLimitError: E3001.
        TransferError: E4007: the caller went away.
        TransferTimeoutError: E4008: the body was not complete after `HTTP_BODY_DEADLINE_S`.
    """
    chunks = bytearray()
    try:
        async with asyncio.timeout(HTTP_BODY_DEADLINE_S):
            async for chunk in request.stream():
                chunks += chunk
                if len(chunks) > limit:
                    raise SizeLimitError(limit)
    except ClientDisconnect:
        raise TransferError from None
    except TimeoutError:
        raise TransferTimeoutError from None
    return bytes(chunks)


def read_message(data: bytes, kind: type[_MessageT]) -> _MessageT:
    """Read JSON as a message.

    Raises:
        ArgumentError: E2001: it is no JSON, or a field has the wrong type.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        raise ArgumentError from None


async def until_disconnected(receive: Receive) -> None:
    """Return once the caller is gone; nothing else may wait for messages of the same request."""
    while (await receive())["type"] != "http.disconnect":
        pass


def check_user(name: str) -> None:
    """Accept E2B's user names; they change nothing.

    Raises:
        ArgumentError: E2001: there is no such user.
    """
    if name not in USERS:
        raise ArgumentError


def check_basic_user(request: Request) -> None:
    """Accept the user that E2B's clients put into Basic credentials of an RPC.

    Raises:
        ArgumentError: E2001: there is no such user, or the header is malformed.
    """
    value = header(request, "authorization")
    if value is None:
        return
    scheme, _, encoded = value.partition(b" ")
    if scheme.lower() != b"basic":
        raise ArgumentError
    try:
        name = base64.b64decode(encoded.strip(), validate=True).decode("ascii").partition(":")[0]
    except (binascii.Error, UnicodeDecodeError):
        raise ArgumentError from None
    check_user(name)


class KeyRing:
    """The API keys of the control plane; without any, every caller is accepted as one owner.

    Args:
        keys: The keys, each kept as its digest only.
    """

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def owner(self, request: Request, *, bearer: bool = False) -> bytes:
        """Return the owner that a request's API key stands for.

        Args:
            request: The request.
            bearer: Whether the key may come as `Authorization: Bearer` as well.

        Raises:
            AuthenticationError: E5005: the key is missing or wrong.
        """
        if not self._digests:
            return b""
        key = header(request, headers.API_KEY)
        if key is None and bearer:
            scheme, _, value = (header(request, "authorization") or b"").partition(b" ")
            key = value.strip() if scheme.lower() == b"bearer" else None
        given = hashlib.sha256(key or b"").digest()
        matches = [known for known in self._digests if hmac.compare_digest(known, given)]
        if not matches:
            raise AuthenticationError
        return matches[0]


def sandbox_of(request: Request, sandboxes: Sandboxes) -> Sandbox:
    """Return the sandbox that a data-plane request is for, after checking its token.

    Raises:
        ArgumentError: E2001: no sandbox is named.
        SandboxNotFoundError: E5001.
        AuthenticationError: E5005: the token is missing or wrong.
    """
    sandbox = named_sandbox(request, sandboxes)
    if sandbox is None:
        raise ArgumentError
    if not sandbox.accepts_token(header(request, headers.ACCESS_TOKEN) or b""):
        raise AuthenticationError
    return sandbox


def named_sandbox(request: Request, sandboxes: Sandboxes) -> Sandbox | None:
    """Return the sandbox that the headers name, None where they name none.

    Raises:
        SandboxNotFoundError: E5001.
        UnsupportedError: E5006: they name another port of it than the service's own.
    """
    sandbox_id = header(request, headers.SANDBOX_ID)
    if sandbox_id is None:
        return None
    if header(request, headers.SANDBOX_PORT) not in (None, b"%d" % headers.ENVD_PORT):
        raise UnsupportedError
    sandbox = sandboxes.get(sandbox_id.decode("latin-1"))
    request.scope["agent_sandbox.sandbox"] = sandbox.sandbox_id[:8]
    return sandbox


def signed_sandbox(fields: dict[str, str], operation: str, sandboxes: Iterable[Sandbox]) -> Sandbox:
    """Return the sandbox whose token signed a URL. Such a URL need not name the sandbox.

    Args:
        fields: The query: `path`, `signature`, and as they were signed `username` and
            `signature_expiration` (Unix seconds).
        operation: `read` or `write`.
        sandboxes: Which ones it may be.

    Raises:
        PathError: E2002: the path is too long; nobody could have signed it to any use.
        ArgumentError: E2001: there is no such user.
        AuthenticationError: E5005: no sandbox's token made it, or it has expired.
    """
    # Before the work, which everybody may ask for: one digest of all this for each sandbox.
    if len(fields.get("path", "").encode()) > MAX_PATH_BYTES:
        raise PathError
    check_user(fields.get("username", ""))
    expiry = fields.get("signature_expiration")
    if expiry is not None and not (
        expiry.isascii()
        and expiry.isdigit()
        and len(expiry) <= _MAX_EXPIRY_DIGITS
        and time.time() < int(expiry)
    ):
        raise AuthenticationError
    signed = [fields.get("path", ""), operation, fields.get("username", "")]
    signed += [] if expiry is None else [expiry]
    for sandbox in sandboxes:
        if sandbox.accepts_signature(fields["signature"], *signed):
            return sandbox
    raise AuthenticationError
