"""Making, finding and ending sandboxes: the control plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from agent_sandbox.client._answers import CONTROL, require_identity
from agent_sandbox.client._calls import Call, Head, Operation, Sink, exchange
from agent_sandbox.client._sinks import Bounded, Nothing
from agent_sandbox.client.operations._checks import (
    checked_deadline,
    checked_sandbox_id,
    checked_ttl,
)
from agent_sandbox.errors import (
    AgentSandboxError,
    ArgumentError,
    SandboxNotFoundError,
    SandboxTimeoutError,
    SandboxUnavailableError,
)
from agent_sandbox.limits import RESOLVE_TIMEOUT_S
from agent_sandbox.models import SandboxInfo
from agent_sandbox.wire import e2b

T = TypeVar("T")

MAX_ANSWER_BYTES = 16_777_216
"""Longest answer of the control plane."""

_LISTED = TypeAdapter(list[e2b.ListedSandbox])
_DETAIL = TypeAdapter(e2b.SandboxDetail)
_SANDBOX = TypeAdapter(e2b.Sandbox)


def create(
    ttl_seconds: int | None, metadata: Mapping[str, str] | None, deadline_s: float | None
) -> Operation[e2b.Sandbox]:
    """Describe the making of a sandbox."""
    ttl, deadline_s = checked_ttl(ttl_seconds), checked_deadline(deadline_s)
    try:
        body = e2b.NewSandbox(timeout=ttl, metadata=dict(metadata or {})).to_json()
    except (ValidationError, TypeError, ValueError):
        raise ArgumentError from None
    return (
        yield from _json("POST", "/v2/sandboxes", _SANDBOX, body, deadline_s or RESOLVE_TIMEOUT_S)
    )


def connect(
    sandbox_id: str, ttl_seconds: int | None, deadline_s: float | None = None
) -> Operation[e2b.Sandbox]:
    """Describe finding a sandbox; its life is then at least `ttl_seconds`, never shorter."""
    path = f"/v2/sandboxes/{checked_sandbox_id(sandbox_id)}/connect"
    body = e2b.ConnectSandbox(timeout=checked_ttl(ttl_seconds)).to_json()
    deadline_s = checked_deadline(deadline_s) or RESOLVE_TIMEOUT_S
    found = yield from _json("POST", path, _SANDBOX, body, deadline_s)
    if found.sandbox_id != sandbox_id:
        raise SandboxUnavailableError
    return found


def list_all() -> Operation[list[SandboxInfo]]:
    """Describe the list of every sandbox that the credentials may see."""
    found = yield from _json("GET", "/v2/sandboxes", _LISTED)
    return [_info(sandbox) for sandbox in found]


def info(sandbox_id: str) -> Operation[SandboxInfo]:
    """Describe a look at one sandbox; it renews and adopts nothing."""
    return _info((yield from _json("GET", f"/sandboxes/{checked_sandbox_id(sandbox_id)}", _DETAIL)))


def set_ttl(sandbox_id: str, ttl_seconds: int) -> Operation[None]:
    """Describe setting the life of a sandbox, from now, earlier or later than before."""
    path = f"/sandboxes/{checked_sandbox_id(sandbox_id)}/timeout"
    if ttl_seconds is None:
        raise ArgumentError
    body = e2b.SandboxTimeout(timeout=checked_ttl(ttl_seconds)).to_json()
    yield from exchange(_call("POST", path, _nothing, body))


def kill(sandbox_id: str) -> Operation[bool]:
    """Describe the end of a sandbox; its value is False where it was gone."""
    try:
        path = f"/sandboxes/{checked_sandbox_id(sandbox_id)}"
        yield from exchange(_call("DELETE", path, _nothing))
    except SandboxNotFoundError:
        return False
    return True


def _json(
    method: str,
    path: str,
    form: TypeAdapter[T],
    body: bytes | None = None,
    deadline_s: float = RESOLVE_TIMEOUT_S,
) -> Operation[T]:
    data = yield from exchange(_call(method, path, _body, body, deadline_s))
    try:
        return form.validate_json(data)
    except ValidationError:
        raise SandboxUnavailableError from None


def _call(
    method: str,
    path: str,
    accept: Callable[[Head], Sink[T]],
    body: bytes | None = None,
    deadline_s: float = RESOLVE_TIMEOUT_S,
) -> Call[Sink[T]]:
    return Call(
        method=method,
        path=path,
        headers={"content-type": "application/json"} if body is not None else {},
        content=body,
        accept=accept,
        deadline_s=deadline_s,
        timeout_error=SandboxTimeoutError,
        broken_error=SandboxUnavailableError,
    )


def _body(head: Head) -> Sink[bytes]:
    CONTROL.check(head, 200, 201)
    require_identity(head)
    return Bounded(MAX_ANSWER_BYTES, over=_too_long)


def _nothing(head: Head) -> Sink[None]:
    CONTROL.check(head, 200, 202, 204)
    return Nothing()


def _too_long(limit: int) -> AgentSandboxError:
    return SandboxUnavailableError()


def _info(sandbox: e2b.ListedSandbox) -> SandboxInfo:
    return SandboxInfo(
        sandbox_id=sandbox.sandbox_id,
        state=sandbox.state,
        started_at=sandbox.started_at,
        end_at=sandbox.end_at,
        metadata=sandbox.metadata,
    )
