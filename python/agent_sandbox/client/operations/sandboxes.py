"""Making, finding and ending sandboxes: the control plane."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from agent_sandbox.client._answers import CONTROL, require_identity
from agent_sandbox.client._calls import Call, Head, Operation, Sink, exchange
from agent_sandbox.client._sinks import Nothing, Parsed
from agent_sandbox.client.operations._checks import (
    checked_deadline,
    checked_sandbox_id,
    checked_ttl,
    is_sandbox_id,
)
from agent_sandbox.client.operations._entries import in_utc
from agent_sandbox.errors import (
    ArgumentError,
    SandboxNotFoundError,
    SandboxTimeoutError,
    SandboxUnavailableError,
)
from agent_sandbox.limits import RESOLVE_TIMEOUT_S
from agent_sandbox.models import SandboxInfo
from agent_sandbox.wire import e2b, headers

T = TypeVar("T")

MAX_ANSWER_BYTES = 16_777_216
"""Longest answer of the control plane, each page of a list for itself."""

MAX_LISTED = 100_000
"""Most sandboxes of one list, over all its pages."""

_LISTED = TypeAdapter(list[e2b.ListedSandbox])


def create(
    ttl_seconds: int | None, metadata: Mapping[str, str] | None, deadline_s: float | None
) -> Operation[e2b.Sandbox]:
    """Describe the making of a sandbox."""
    ttl, deadline_s = checked_ttl(ttl_seconds), checked_deadline(deadline_s)
    try:
        body = e2b.NewSandbox(timeout=ttl, metadata=dict(metadata or {})).to_json()
    except (ValidationError, TypeError, ValueError):
        raise ArgumentError from None
    return (yield from _json("POST", "/v2/sandboxes", _made, body, deadline_s or RESOLVE_TIMEOUT_S))


def connect(
    sandbox_id: str,
    ttl_seconds: int | None,
    deadline_s: float | None = None,
    *,
    claim: bool = False,
) -> Operation[e2b.Sandbox]:
    """Describe finding a sandbox; its life is then at least `ttl_seconds`, never shorter."""
    path = f"/v2/sandboxes/{checked_sandbox_id(sandbox_id)}/connect"
    body = e2b.ConnectSandbox(timeout=checked_ttl(ttl_seconds)).to_json()
    deadline_s = checked_deadline(deadline_s) or RESOLVE_TIMEOUT_S
    more = {headers.CLAIM: "1"} if claim else {}
    found = yield from _json("POST", path, _made, body, deadline_s, more)
    if found.sandbox_id != sandbox_id:
        raise SandboxUnavailableError
    return found


def list_all() -> Operation[list[SandboxInfo]]:
    """Describe the list of every sandbox that the credentials may see, page by page."""
    ends_at = time.monotonic() + RESOLVE_TIMEOUT_S
    found: dict[str, SandboxInfo] = {}  # a page may repeat what a new sandbox has moved on to it
    token: str | None = None

    def page(head: Head) -> Sink[list[SandboxInfo]]:
        nonlocal token
        token = next(iter(head.headers.get_list(headers.NEXT_TOKEN)), None)
        return _answer(head, _listed)

    while True:
        left_s = ends_at - time.monotonic()
        if left_s <= 0:
            raise SandboxTimeoutError
        params = {} if token is None else {"nextToken": token}
        call = _call("GET", "/v2/sandboxes", page, deadline_s=left_s, params=params)
        sandboxes = yield from exchange(call)
        found |= {sandbox.sandbox_id: sandbox for sandbox in sandboxes}
        if not token:
            return list(found.values())
        if not sandboxes or len(found) > MAX_LISTED:
            raise SandboxUnavailableError


def info(sandbox_id: str) -> Operation[SandboxInfo]:
    """Describe a look at one sandbox; it renews and adopts nothing."""
    path = f"/sandboxes/{checked_sandbox_id(sandbox_id)}"
    found = yield from _json("GET", path, _detail)
    if found.sandbox_id != sandbox_id:
        raise SandboxUnavailableError
    return found


def set_ttl(sandbox_id: str, ttl_seconds: int) -> Operation[None]:
    """Describe setting the life of a sandbox, from now, earlier or later than before."""
    path = f"/sandboxes/{checked_sandbox_id(sandbox_id)}/timeout"
    if ttl_seconds is None:
        raise ArgumentError
    body = e2b.SandboxTimeout(timeout=checked_ttl(ttl_seconds)).to_json()
    yield from exchange(_call("POST", path, _nothing, body))


def kill(sandbox_id: str, *, unless_retained: bool = False) -> Operation[bool]:
    """Describe the end of a sandbox; its value is False where it was gone."""
    more = {headers.UNLESS_RETAINED: "1"} if unless_retained else {}
    try:
        path = f"/sandboxes/{checked_sandbox_id(sandbox_id)}"
        yield from exchange(_call("DELETE", path, _nothing, more=more))
    except SandboxNotFoundError:
        return False
    return True


def _json(
    method: str,
    path: str,
    parse: Callable[[bytes], T],
    body: bytes | None = None,
    deadline_s: float = RESOLVE_TIMEOUT_S,
    more: Mapping[str, str] | None = None,
) -> Operation[T]:
    def accept(head: Head) -> Sink[T]:
        return _answer(head, parse)

    return (yield from exchange(_call(method, path, accept, body, deadline_s, more=more)))


def _call(
    method: str,
    path: str,
    accept: Callable[[Head], Sink[T]],
    body: bytes | None = None,
    deadline_s: float = RESOLVE_TIMEOUT_S,
    params: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Call[Sink[T]]:
    return Call(
        method=method,
        path=path,
        params=params or {},
        headers=({"content-type": "application/json"} if body is not None else {})
        | dict(more or {}),
        content=body,
        accept=accept,
        deadline_s=deadline_s,
        timeout_error=SandboxTimeoutError,
        broken_error=SandboxUnavailableError,
    )


def _answer(head: Head, parse: Callable[[bytes], T]) -> Sink[T]:
    CONTROL.check(head, 200, 201)
    require_identity(head)
    return Parsed(MAX_ANSWER_BYTES, parse, SandboxUnavailableError)


def _nothing(head: Head) -> Sink[None]:
    CONTROL.check(head, 200, 202, 204)
    return Nothing()


def _made(data: bytes) -> e2b.Sandbox:
    sandbox = e2b.Sandbox.model_validate_json(data)
    _check_id(sandbox.sandbox_id)
    return sandbox


def _listed(data: bytes) -> list[SandboxInfo]:
    return [_info(sandbox) for sandbox in _LISTED.validate_json(data)]


def _detail(data: bytes) -> SandboxInfo:
    return _info(e2b.SandboxDetail.model_validate_json(data))


def _info(sandbox: e2b.ListedSandbox) -> SandboxInfo:
    _check_id(sandbox.sandbox_id)
    try:
        started_at, end_at = in_utc(sandbox.started_at), in_utc(sandbox.end_at)
    except OverflowError:
        raise SandboxUnavailableError from None
    return SandboxInfo(
        sandbox_id=sandbox.sandbox_id,
        state=sandbox.state,
        started_at=started_at,
        end_at=end_at,
        metadata=sandbox.metadata,
    )


def _check_id(sandbox_id: str) -> None:
    """Refuse an id that could not stand in a URL and in a header."""
    if not is_sandbox_id(sandbox_id):
        raise SandboxUnavailableError
