"""Lives, ends, several replicas and cancellation, in one suite for every store."""

from __future__ import annotations

import anyio
from tests.support.upload_parts import START_MS, Database
from tests.support.upload_rows import DAY, HOUR, MINUTE, claimed, new, state_of, stored

from agent_sandbox.uploads.states import Phase, State


async def test_a_new_session_is_pending_with_both_lives_on_the_databases_clock(
    database: Database,
) -> None:
    session = await database.store.create(new(sha256="ab" * 32, size_bytes=2**40))
    assert session.state is State.PENDING
    assert session.created_unix_ms == session.now_unix_ms == START_MS
    assert session.put_by_unix_ms == START_MS + 10 * MINUTE
    assert session.use_by_unix_ms == START_MS + HOUR
    assert session.secret_hmac == b"\x00\xff" * 16
    assert (session.sha256, session.size_bytes) == ("ab" * 32, 2**40)
    assert await database.store.read(session.upload_id) == session


async def test_an_unknown_id_reads_as_nothing_and_changes_nothing(database: Database) -> None:
    store = database.store
    assert await store.read("nope") is None
    assert await store.claim_put("nope", attempt="a", object_key="k", body_ms=1) is None
    assert await store.revoke("nope") is None


async def test_the_latest_session_of_a_name_is_that_of_the_credential_there(
    database: Database,
) -> None:
    store = database.store
    mine = {"filename": "x/y", "credential_id": "a", "workspace": "w"}
    for other in (
        {**mine, "filename": "y"},
        {**mine, "credential_id": "b"},
        {**mine, "workspace": "v"},
    ):
        await store.create(new(**other))
        assert await store.latest("a", "w", "x/y") is None
    await store.create(new(**mine))
    await database.advance(1)
    newest = await store.create(new(**mine))
    assert await store.latest("a", "w", "x/y") == newest
    await database.advance(10 * MINUTE)
    found = await store.latest("a", "w", "x/y")
    assert found is not None
    assert (found.upload_id, found.state) == (newest.upload_id, State.EXPIRED)


async def test_the_secret_lives_to_the_last_millisecond_and_not_longer(database: Database) -> None:
    one = await database.store.create(new())
    two = await database.store.create(new())
    await database.advance(10 * MINUTE - 1)
    assert await database.store.claim_put(one.upload_id, attempt="a", object_key="k1", body_ms=1)
    await database.advance(1)
    late = await database.store.claim_put(two.upload_id, attempt="a", object_key="k2", body_ms=1)
    assert late is None
    assert await state_of(database, two) is State.EXPIRED
    assert await state_of(database, one) is State.RECEIVING


async def test_a_stored_file_lives_an_hour_to_the_millisecond(database: Database) -> None:
    one, two = await stored(database), await stored(database)
    await database.advance(HOUR - 1)
    assert await database.store.claim_place(one.upload_id, attempt="p", target="{}", lease_ms=9)
    await database.advance(1)
    late = await database.store.claim_place(two.upload_id, attempt="p", target="{}", lease_ms=9)
    assert late is None
    assert await state_of(database, two) is State.EXPIRED


async def test_an_end_is_never_left(database: Database) -> None:
    store = database.store
    failed = await claimed(database)
    await store.finish_put(failed.upload_id, attempt="a1", to=State.FAILED)
    revoked = await store.create(new())
    await store.revoke(revoked.upload_id)
    expired = await store.create(new(put_life_ms=0))
    await store.expire(keep_ms=DAY)
    placed = await stored(database)
    await store.claim_place(placed.upload_id, attempt="p", target="{}", lease_ms=MINUTE)
    await store.settle_place(placed.upload_id, attempt="p", phase=Phase.DONE, result="{}")
    for session in (failed, revoked, expired, placed):
        name = session.upload_id
        assert await store.claim_put(name, attempt="a1", object_key="n", body_ms=1) is None
        assert await store.record_received(name, attempt="a1", size_bytes=1, sha256="") is None
        for to in (State.STORED, State.FAILED, State.UNKNOWN):
            assert await store.finish_put(name, attempt="a1", to=to) is None
        for after in (None, "p"):
            assert (
                await store.claim_place(name, attempt="q", target="", lease_ms=1, after=after)
                is None
            )
        for phase in (Phase.DONE, Phase.CLOSED, Phase.UNKNOWN):
            assert await store.settle_place(name, attempt="p", phase=phase) is None
        assert await store.revoke(name) is None
    assert await store.expire(keep_ms=0) == []


async def test_any_number_of_replicas_migrate_at_once(database: Database) -> None:
    stores = [database.another() for _ in range(4)]
    session = await database.store.create(new())
    async with anyio.create_task_group() as group:
        for store in stores:
            group.start_soon(store.migrate)
    assert await stores[0].read(session.upload_id) == session


async def test_a_change_that_began_is_finished_though_its_task_is_cancelled(
    database: Database,
) -> None:
    session = await database.store.create(new())
    reached: list[bool] = []

    async def claim() -> None:
        await database.store.claim_put(
            session.upload_id, attempt="a", object_key="k", body_ms=MINUTE
        )
        reached.append(True)
        await anyio.lowlevel.checkpoint()
        reached.append(False)

    async with anyio.create_task_group() as group:
        group.start_soon(claim)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert reached == [True]
    assert await state_of(database, session) is State.RECEIVING
