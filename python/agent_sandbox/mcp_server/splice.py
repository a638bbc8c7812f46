"""Base64 goes around the SDK's serialisers: they carry a short token, the transport puts it back.

Between a tool and the wire the SDK validates, copies, escapes, decodes and encodes a result several
times, which for 1 MiB takes longer than to read the file from the sandbox. Base64 needs no escape
in JSON, in a string within a string neither, so that its place can be filled in the finished bytes.
The token is random for each result: nothing that a caller sends or stores can be taken for it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

SMALLEST_CHARS = 65_536
"""Shorter texts take the ordinary way."""

_SCOPE_KEY = "agent_sandbox.spliced"


@dataclass(slots=True)
class Spliced:
    """The texts that one answer leaves out, with their tokens."""

    texts: dict[bytes, str] = field(default_factory=dict)

    def leave_out(self, text: str) -> str:
        """Return what stands for a Base64 text until the answer is filled."""
        if len(text) < SMALLEST_CHARS:
            return text
        token = secrets.token_hex(32)
        self.texts[token.encode()] = text
        return token

    def fill(self, answer: bytes) -> bytes:
        """Return the finished answer; the texts are forgotten."""
        texts, self.texts = self.texts, {}
        for token, text in texts.items():
            answer = answer.replace(token, text.encode("ascii"))
        return answer


@dataclass(frozen=True, slots=True)
class LineRequest:
    """What a handler sees as its request over STDIO.

    Attributes:
        size_bytes: How long its line was.
        spliced: What its answer leaves out.
    """

    size_bytes: int = 0
    spliced: Spliced = field(default_factory=Spliced)


def offer(scope: Any) -> Spliced:
    """Give an HTTP request a place for texts that its answer leaves out."""
    spliced: Spliced = scope.setdefault(_SCOPE_KEY, Spliced())
    return spliced


def spliced_of(request: object) -> Spliced | None:
    """Return the place that a transport of ours has given a request, if it has."""
    if isinstance(request, LineRequest):
        return request.spliced
    if isinstance(request, Request):
        found = request.scope.get(_SCOPE_KEY)
        return found if isinstance(found, Spliced) else None
    return None
