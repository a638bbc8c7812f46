"""What the answer to a PUT says: that the file is stored, the server's own refusal, or neither."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from agent_sandbox.errors import (
    BY_CODE,
    AgentSandboxError,
    DeclarationError,
    TransferError,
    UploadOutcomeUnknownError,
)
from agent_sandbox.uploads.exchange import Response

_NAME = re.compile(r"[0-9A-Za-z._~-]{1,128}")  # it may be shown on a terminal


@dataclass(frozen=True, slots=True)
class PutResult:
    """What the server has stored, checked against what was read here.

    Attributes:
        upload_id: The session; give it to the agent.
        state: `stored`.
        size_bytes: Size of the file.
        sha256: Lower-case hex digest, counted on both sides.
    """

    upload_id: str
    state: str
    size_bytes: int
    sha256: str


def judged(
    response: Response, body: bytes, *, size_bytes: int, sha256: str, may_have_begun: bool
) -> PutResult:
    """Return what was stored, if the answer says so and it is what was sent.

    Args:
        response: The final answer.
        body: Its whole body.
        size_bytes: Size of the file.
        sha256: Digest of what was read of it.
        may_have_begun: Whether the session's attempt may be used by now.

    Raises:
        AgentSandboxError: The server's refusal, by its code.
        TransferError: E4007, with `answered_status`: somebody else answered, to nothing but a head.
        UploadOutcomeUnknownError: E7011, somebody else answered to more than that.
        DeclarationError: E2005, another file was stored.
    """
    given = _object(body)
    refusal = None if response.status == 200 else _refusal(response, given)
    if refusal is not None:
        raise refusal
    if not may_have_begun:
        raise TransferError(answered_status=response.status)
    if response.status != 200:
        raise UploadOutcomeUnknownError(state="unknown")
    result = PutResult(
        _name(given, "upload_id"),
        _name(given, "state"),
        given.get("size_bytes", -1),
        _name(given, "sha256"),
    )
    if result.size_bytes != size_bytes or result.sha256 != sha256:
        raise DeclarationError
    return result


def _object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer, an empty one where there is none."""
    try:
        given = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return given if isinstance(given, dict) else {}


def _name(given: dict[str, Any], field: str) -> str:
    value = given.get(field)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise UploadOutcomeUnknownError(state="unknown")
    return value


def _refusal(response: Response, given: dict[str, Any]) -> AgentSandboxError | None:
    """Return the error that the answer names; None for an answer of somebody else, as a proxy."""
    codes = response.values(b"agent-sandbox-error")
    cls = BY_CODE.get(codes[0].decode("latin-1")) if len(codes) == 1 else None
    details = {
        name: given[name]
        for name, kind in (("state", str), ("limit", int))
        if isinstance(given.get(name), kind)
    }
    try:
        return None if cls is None else cls(**details)
    except TypeError:  # not what this error needs
        return None
