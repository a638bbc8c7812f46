"""What is told about sessions: ids, states and error codes, never anything else."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent_sandbox.uploads.states import State

_log = logging.getLogger("agent_sandbox.uploads.audit")


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
"""Told of every event, in the event loop; must be quick and must not raise."""


class Audit:
    """Writes the audit log and counts for metrics."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer
        self._counts: Counter[tuple[str, str]] = Counter()

    def tell(self, upload_id: str, action: str, state: State, code: str | None = None) -> None:
        """Record one event."""
        self._counts[action, str(state)] += 1
        _log.info("upload %s %s -> %s%s", upload_id, action, state, f" ({code})" if code else "")
        if self._observer is not None:
            self._observer(AuditEvent(upload_id, action, state, code))

    def counts(self) -> Mapping[tuple[str, str], int]:
        """Return how often each (action, state after it) happened in this process."""
        return dict(self._counts)
