"""Attempts of placing, and their leases. The clock stands still."""

from __future__ import annotations

from tests.support.upload_parts import Database
from tests.support.upload_rows import MINUTE, stored

from agent_sandbox.uploads.states import Phase, State


async def test_placing_is_claimed_once_and_again_only_after_its_attempt_is_closed(
    database: Database,
) -> None:
    store = database.store
    name = (await stored(database)).upload_id
    assert await store.claim_place(name, attempt="p1", target='{"a":1}', lease_ms=MINUTE)
    assert await store.claim_place(name, attempt="p2", target="{}", lease_ms=MINUTE) is None
    assert await store.settle_place(name, attempt="p2", phase=Phase.CLOSED) is None
    closed = await store.settle_place(name, attempt="p1", phase=Phase.CLOSED, reason="E4002")
    assert closed is not None
    assert (closed.state, closed.place_phase) == (State.PLACING, Phase.CLOSED)
    assert await store.settle_place(name, attempt="p1", phase=Phase.DONE) is None
    again = await store.claim_place(name, attempt="p2", target="{}", lease_ms=MINUTE)
    assert again is not None
    assert (again.place_count, again.reason) == (2, None)
    done = await store.settle_place(name, attempt="p2", phase=Phase.DONE, result='{"n":1}')
    assert done is not None
    assert (done.state, done.place_result) == (State.PLACED, '{"n":1}')


async def test_an_attempt_past_its_lease_reads_as_unknown_and_only_a_proof_reopens_it(
    database: Database,
) -> None:
    store = database.store
    name = (await stored(database)).upload_id
    await store.claim_place(name, attempt="p1", target="{}", lease_ms=MINUTE)
    assert await store.claim_place(name, attempt="p2", target="", lease_ms=1, after="p1") is None
    await database.advance(MINUTE)
    found = await store.read(name)
    assert found is not None
    assert found.place_phase is Phase.UNKNOWN
    assert await store.claim_place(name, attempt="p2", target="", lease_ms=1) is None
    assert await store.claim_place(name, attempt="p2", target="", lease_ms=1, after="p0") is None
    assert await store.claim_place(name, attempt="p2", target="", lease_ms=1, after="p1")
    assert await store.settle_place(name, attempt="p1", phase=Phase.DONE) is None
