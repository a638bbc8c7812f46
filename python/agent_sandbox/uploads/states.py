"""The states of an upload session and what each of them answers, as data.

Nothing here touches a database or a clock. `MOVES` are the only changes of state there are (no
state leads back), `TABLE` says what happens in each state for each event.
"""

from __future__ import annotations

import enum


class State(enum.StrEnum):
    """Where a session stands. `unknown` keeps its bytes until it is reconciled."""

    PENDING = "pending"
    RECEIVING = "receiving"
    STORED = "stored"
    PLACING = "placing"
    PLACED = "placed"
    FAILED = "failed"
    EXPIRED = "expired"
    REVOKED = "revoked"
    UNKNOWN = "unknown"


class Phase(enum.StrEnum):
    """How far the latest attempt of placing has come, while the state is `placing` or `placed`."""

    NONE = "none"
    OPEN = "open"
    CLOSED = "closed"
    UNKNOWN = "unknown"
    DONE = "done"


class Event(enum.StrEnum):
    """What can happen to a session."""

    PUT = "put"
    PLACE = "place"
    REVOKE = "revoke"
    PUT_BY = "put_by"
    USE_BY = "use_by"
    SWEEP = "sweep"


class Answer(enum.StrEnum):
    """What a session answers to an event.

    Attributes:
        CLAIM: It moves on; the caller holds the attempt (`receiving`, or `placing`).
        CONFLICT: HTTP 409, nothing changes.
        GONE: HTTP 410, nothing changes.
        NOT_READY: The bytes are not there yet.
        JOIN: The caller waits for the attempt that runs.
        REPLAY: The recorded result again; nothing is written.
        ENDED: The state's own text: open a new session.
        RECONCILE: The outcome is found out first; then the state found answers.
        MOVE: It moves to an end; its bytes are dropped.
        LATER: It is noted and takes effect when the attempt commits.
        NO_OP: Already at an end; the call succeeds.
        NOTHING: The event does not touch this state.
        REMOVE: The row goes, and what is left of its bytes.
    """

    CLAIM = "claim"
    CONFLICT = "conflict"
    GONE = "gone"
    NOT_READY = "not_ready"
    JOIN = "join"
    REPLAY = "replay"
    ENDED = "ended"
    RECONCILE = "reconcile"
    MOVE = "move"
    LATER = "later"
    NO_OP = "no_op"
    NOTHING = "nothing"
    REMOVE = "remove"


ENDS = frozenset({State.PLACED, State.FAILED, State.EXPIRED, State.REVOKED})
"""States that nothing leaves."""

PENDING_QUOTA = frozenset({State.PENDING, State.RECEIVING})
"""States that count against the quota of pending uploads."""

MOVES: dict[State, frozenset[State]] = {
    State.PENDING: frozenset({State.RECEIVING, State.EXPIRED, State.REVOKED}),
    State.RECEIVING: frozenset({State.STORED, State.FAILED, State.REVOKED, State.UNKNOWN}),
    State.UNKNOWN: frozenset({State.STORED, State.FAILED, State.REVOKED}),
    State.STORED: frozenset({State.PLACING, State.EXPIRED, State.REVOKED}),
    State.PLACING: frozenset({State.PLACED, State.EXPIRED}),
    State.PLACED: frozenset(),
    State.FAILED: frozenset(),
    State.EXPIRED: frozenset(),
    State.REVOKED: frozenset(),
}
"""Every allowed change of state. `placing` expires only between attempts, at the daily sweep."""

_COLUMNS = (Event.PUT, Event.PLACE, Event.REVOKE, Event.PUT_BY, Event.USE_BY, Event.SWEEP)
_A = Answer
_ROWS: dict[State, tuple[Answer, ...]] = {
    State.PENDING: (_A.CLAIM, _A.NOT_READY, _A.MOVE, _A.MOVE, _A.MOVE, _A.REMOVE),
    State.RECEIVING: (_A.CONFLICT, _A.NOT_READY, _A.LATER, _A.NOTHING, _A.NOTHING, _A.NOTHING),
    State.STORED: (_A.CONFLICT, _A.CLAIM, _A.MOVE, _A.NOTHING, _A.MOVE, _A.REMOVE),
    State.PLACING: (_A.CONFLICT, _A.JOIN, _A.CONFLICT, _A.NOTHING, _A.NOTHING, _A.NOTHING),
    State.PLACED: (_A.CONFLICT, _A.REPLAY, _A.NO_OP, _A.NOTHING, _A.NOTHING, _A.REMOVE),
    State.FAILED: (_A.CONFLICT, _A.ENDED, _A.NO_OP, _A.NOTHING, _A.NOTHING, _A.REMOVE),
    State.EXPIRED: (_A.GONE, _A.ENDED, _A.NO_OP, _A.NOTHING, _A.NOTHING, _A.REMOVE),
    State.REVOKED: (_A.GONE, _A.ENDED, _A.NO_OP, _A.NOTHING, _A.NOTHING, _A.REMOVE),
    State.UNKNOWN: (
        _A.CONFLICT,
        _A.RECONCILE,
        _A.RECONCILE,
        _A.NOTHING,
        _A.RECONCILE,
        _A.RECONCILE,
    ),
}

TABLE: dict[tuple[State, Event], Answer] = {
    (state, event): answer
    for state, row in _ROWS.items()
    for event, answer in zip(_COLUMNS, row, strict=True)
}
"""One answer for each state and event."""


def allowed(old: State, new: State) -> bool:
    """Return whether a session may move from `old` to `new`."""
    return new in MOVES[old]


def answer(state: State, event: Event, phase: Phase = Phase.NONE) -> Answer:
    """Return what a session in `state` answers to `event`.

    Args:
        state: Where the session stands.
        event: What happens.
        phase: How far the latest attempt of placing is. A placing whose attempt is closed hands
            out the next attempt; one whose outcome is unknown is reconciled first.
    """
    if state is State.PLACING and event is Event.PLACE:
        if phase is Phase.CLOSED:
            return Answer.CLAIM
        if phase is Phase.UNKNOWN:
            return Answer.RECONCILE
    if state is State.PLACING and event is Event.SWEEP and phase is Phase.CLOSED:
        # Else the bytes of a use that failed, and was never tried again, would stay for ever.
        return Answer.REMOVE
    return TABLE[state, event]
