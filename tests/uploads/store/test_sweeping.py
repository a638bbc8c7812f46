"""What the sweep finds, writes down and removes. The clock stands still."""

from __future__ import annotations

import anyio
from tests.support.upload_parts import Database
from tests.support.upload_rows import DAY, HOUR, MINUTE, claimed, new, state_of, stored

from agent_sandbox.uploads.states import Phase, State


async def test_expiry_is_written_down_for_each_state_as_specified(database: Database) -> None:
    store = database.store
    pending, kept = await store.create(new()), await stored(database)
    receiving, placing = await claimed(database), await stored(database)
    await store.claim_place(placing.upload_id, attempt="p", target="{}", lease_ms=DAY * 9)
    closed = await stored(database)
    await store.claim_place(closed.upload_id, attempt="p", target="{}", lease_ms=MINUTE)
    await store.settle_place(closed.upload_id, attempt="p", phase=Phase.CLOSED)
    given = await stored(database, kind="download")
    await store.claim_place(given.upload_id, attempt="p", target="{}", lease_ms=DAY)
    assert await store.expire(keep_ms=DAY) == []

    async def expired() -> set[str]:
        return {session.upload_id for session in await store.expire(keep_ms=DAY)}

    await database.advance(10 * MINUTE)
    assert await expired() == {pending.upload_id}
    await database.advance(HOUR)
    assert await expired() == {kept.upload_id}
    await database.advance(DAY)
    assert await expired() == {closed.upload_id, given.upload_id}
    assert await state_of(database, receiving) is State.RECEIVING
    assert await state_of(database, placing) is State.PLACING


async def test_unsettled_sessions_come_in_pages_and_after_their_grace(database: Database) -> None:
    store = database.store
    names = sorted([(await claimed(database)).upload_id for _ in range(3)])
    unknown = await claimed(database)
    await store.finish_put(unknown.upload_id, attempt="a1", to=State.UNKNOWN)

    async def unsettled(everything: bool, after: str = "", limit: int = 9) -> list[str]:
        found = await store.unsettled(
            grace_ms=MINUTE, everything=everything, after=after, limit=limit
        )
        return [session.upload_id for session in found]

    assert await unsettled(False) == [unknown.upload_id]
    assert await unsettled(True) == sorted([*names, unknown.upload_id])
    await database.advance(2 * MINUTE - 1)
    assert await unsettled(False) == [unknown.upload_id]
    await database.advance(1)
    everyone = sorted([*names, unknown.upload_id])
    assert await unsettled(False, limit=2) == everyone[:2]
    assert await unsettled(False, after=everyone[1]) == everyone[2:]


async def test_a_row_goes_only_after_a_day_and_after_its_bytes(database: Database) -> None:
    store = database.store
    session = await stored(database)
    await store.revoke(session.upload_id)
    await database.advance(DAY - 1)
    assert await store.remove_old(keep_ms=DAY) == []
    await database.advance(1)
    assert await store.remove_old(keep_ms=DAY) == []  # the key is still there
    [found] = await store.blobs_to_delete(after="", limit=9)
    await store.forget_blob(session.upload_id, "another key")
    assert await store.blobs_to_delete(after="", limit=9) == [found]
    assert found.object_key is not None
    await store.forget_blob(session.upload_id, found.object_key)
    assert await store.blobs_to_delete(after="", limit=9) == []
    assert await store.remove_old(keep_ms=DAY) == [session.upload_id]
    assert await store.read(session.upload_id) is None


async def test_the_key_of_a_living_session_is_never_forgotten(database: Database) -> None:
    session = await stored(database)
    assert session.object_key is not None
    await database.store.forget_blob(session.upload_id, session.object_key)
    assert await database.store.known_keys([session.object_key, "x'; --"]) == {session.object_key}
    assert await database.store.known_keys([]) == set()


async def test_two_sweepers_share_the_work_without_an_error(database: Database) -> None:
    stores = [database.store, database.another()]
    for _ in range(10):
        await database.store.create(new(put_life_ms=1))
    await database.advance(DAY)
    expired: list[str] = []
    removed: list[str] = []

    async def sweep(turn: int) -> None:
        expired.extend(one.upload_id for one in await stores[turn].expire(keep_ms=DAY))
        removed.extend(await stores[turn].remove_old(keep_ms=DAY))

    async with anyio.create_task_group() as group:
        group.start_soon(sweep, 0)
        group.start_soon(sweep, 1)
    assert len(expired) == len(set(expired)) == 10
    assert sorted(expired) == sorted(removed)
