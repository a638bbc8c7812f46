"""What happened since the start, in numbers; an operator's view, with nobody's name in it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, Protocol

from starlette.requests import Request
from starlette.responses import Response

Ending = Literal["killed", "expired", "died", "shutdown"]
"""Why a sandbox ended: its caller, its time, its processes, or the service."""


@dataclass(slots=True)
class Tally:
    """Counts that only grow.

    Attributes:
        created: Sandboxes that were handed out.
        ended: Sandboxes that ended, by the reason.
        commands: Commands that were started.
    """

    created: int = 0
    ended: Counter[Ending] = field(default_factory=Counter)
    commands: int = 0


@dataclass(frozen=True, slots=True)
class Served:
    """One request that was served.

    Attributes:
        method: Of the request.
        route: The template of its path; values of a path never stand in it.
        status: 0 where the caller went before an answer began.
        code: Of the error that was answered, or empty.
        head_s: Seconds until the answer began; None where it never did.
        received_bytes: Of the request's body.
        sent_bytes: Of the answer's body.
    """

    method: str
    route: str
    status: int
    code: str
    head_s: float | None
    received_bytes: int
    sent_bytes: int


class Meter(Protocol):
    """Counts requests and answers who asks for the counts."""

    def note(self, served: Served) -> None:
        """Count one request."""

    async def answer(self, request: Request) -> Response:
        """Tell the counts."""
