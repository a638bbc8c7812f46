"""The state table of the specification, cell by cell."""

from __future__ import annotations

import pytest

from agent_sandbox.uploads.states import (
    ENDS,
    MOVES,
    TABLE,
    Answer,
    Event,
    Phase,
    State,
    allowed,
    answer,
)

A = Answer
EVENTS = (Event.PUT, Event.PLACE, Event.REVOKE, Event.PUT_BY, Event.USE_BY, Event.SWEEP)
SPECIFICATION = {
    "pending": (A.CLAIM, A.NOT_READY, A.MOVE, A.MOVE, A.MOVE, A.REMOVE),
    "receiving": (A.CONFLICT, A.NOT_READY, A.LATER, A.NOTHING, A.NOTHING, A.NOTHING),
    "stored": (A.CONFLICT, A.CLAIM, A.MOVE, A.NOTHING, A.MOVE, A.REMOVE),
    "placing": (A.CONFLICT, A.JOIN, A.CONFLICT, A.NOTHING, A.NOTHING, A.NOTHING),
    "placed": (A.CONFLICT, A.REPLAY, A.NO_OP, A.NOTHING, A.NOTHING, A.REMOVE),
    "failed": (A.CONFLICT, A.ENDED, A.NO_OP, A.NOTHING, A.NOTHING, A.REMOVE),
    "expired": (A.GONE, A.ENDED, A.NO_OP, A.NOTHING, A.NOTHING, A.REMOVE),
    "revoked": (A.GONE, A.ENDED, A.NO_OP, A.NOTHING, A.NOTHING, A.REMOVE),
    "unknown": (A.CONFLICT, A.RECONCILE, A.RECONCILE, A.NOTHING, A.RECONCILE, A.RECONCILE),
}
CELLS = [
    (state, event, wanted)
    for state, row in SPECIFICATION.items()
    for event, wanted in zip(EVENTS, row, strict=True)
]


@pytest.mark.parametrize(("state", "event", "wanted"), CELLS)
def test_a_cell_answers_as_specified(state: str, event: Event, wanted: Answer) -> None:
    assert answer(State(state), event) is wanted


def test_every_state_has_an_answer_to_every_event() -> None:
    assert set(TABLE) == {(state, event) for state in State for event in Event}


def test_no_state_leads_back() -> None:
    def reached(state: State) -> set[State]:
        after = set(MOVES[state])
        return after.union(*(reached(one) for one in after)) if after else set()

    assert all(state not in reached(state) for state in State)


def test_nothing_leaves_an_end_and_everything_else_reaches_one() -> None:
    assert {state for state in State if not MOVES[state]} == ENDS
    assert not any(allowed(end, state) for end in ENDS for state in State)


@pytest.mark.parametrize(
    ("phase", "wanted"),
    [
        (Phase.OPEN, Answer.JOIN),
        (Phase.CLOSED, Answer.CLAIM),
        (Phase.UNKNOWN, Answer.RECONCILE),
    ],
)
def test_placing_again_depends_on_how_the_last_attempt_ended(phase: Phase, wanted: Answer) -> None:
    assert answer(State.PLACING, Event.PLACE, phase) is wanted


def test_the_sweep_takes_a_placing_only_between_attempts() -> None:
    assert answer(State.PLACING, Event.SWEEP, Phase.CLOSED) is Answer.REMOVE
    assert answer(State.PLACING, Event.SWEEP, Phase.OPEN) is Answer.NOTHING
    assert answer(State.PLACING, Event.SWEEP, Phase.UNKNOWN) is Answer.NOTHING
