"""What is told about sessions: ids, states and error codes, never anything else."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent_sandbox.uploads.states import State

_log = logging.getLogger("agent_sandbox.uploads.audit")
_own_log = logging.getLogger("agent_sandbox.uploads")


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One change of a session.

    Attributes:
        upload_id: The session's id; no secret.
        action: What was done (`create`, `claim`, `receive`, `place`, `revoke`, `expire`, ...).
        state: The state after it.
        code: Code of the error, where one was the reason.
    """

    upload_id: str
    action: str
    state: State
    code: str | None = None


Observer = Callable[[AuditEvent], None]
"""Told of every event, in the event loop; must be quick. What it raises is logged by its type and
changes nothing: the session has moved on already."""


@dataclass(frozen=True, slots=True)
class Tally:
    """What one process has counted since it started.

    Attributes:
        changes: By (action, state after it).
        errors: By (operation, code), as they were answered.
        bytes: By direction: `in` as they arrived, `out` of files that were used.
        receiving: Bodies that arrive at the moment.
    """

    changes: Mapping[tuple[str, str], int]
    errors: Mapping[tuple[str, str], int]
    bytes: Mapping[str, int]
    receiving: int


class Audit:
    """Writes the audit log and counts for metrics."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer
        self._counts: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, str]] = Counter()
        self._bytes: Counter[str] = Counter()

    def tell(self, upload_id: str, action: str, state: State, code: str | None = None) -> None:
        """Record one event."""
        self._counts[action, str(state)] += 1
        _log.info("upload %s %s -> %s%s", upload_id, action, state, f" ({code})" if code else "")
        if self._observer is not None:
            try:
                self._observer(AuditEvent(upload_id, action, state, code))
            except Exception as error:  # noqa: BLE001 - an embedder's; what happened has happened
                _own_log.error("an observer failed with %s", type(error).__name__)

    def refused(self, operation: str, code: str) -> None:
        """Count an error that is answered."""
        self._errors[operation, code] += 1

    def moved(self, direction: str, size_bytes: int) -> None:
        """Count bytes of a file."""
        self._bytes[direction] += size_bytes

    def tally(self, receiving: int) -> Tally:
        """Return everything that was counted."""
        moved = {way: self._bytes[way] for way in ("in", "out")}
        return Tally(dict(self._counts), dict(self._errors), moved, receiving)
