"""One suite for every store. The database's clock stands still unless a test moves it."""

from __future__ import annotations

import secrets
from typing import Any

import anyio
import pytest
from tests.support.upload_parts import START_MS, Database

from agent_sandbox.errors import UploadQuotaError
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import Phase, State
from agent_sandbox.uploads.store import NewSession

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR


def new(**changes: Any) -> NewSession:
    values: dict[str, Any] = {
        "upload_id": secrets.token_hex(16),
        "kind": "upload",
        "workspace": "blue",
        "credential_id": "static:one",
        "endpoint": "/uploads/x",
        "filename": "a.csv",
        "size_bytes": 5,
        "sha256": None,
        "secret_hmac": b"\x00\xff" * 16,
        "put_life_ms": 10 * MINUTE,
        "use_life_ms": HOUR,
        "pending_max": 20,
        "hourly_max": 120,
    }
    return NewSession(**{**values, **changes})


async def claimed(database: Database, **changes: Any) -> UploadSession:
    session = await database.store.create(new(**changes))
    moved = await database.store.claim_put(
        session.upload_id, attempt="a1", object_key=f"k/{session.upload_id}", body_ms=MINUTE
    )
    assert moved is not None
    return moved


async def stored(database: Database, **changes: Any) -> UploadSession:
    session = await claimed(database, **changes)
    store = database.store
    await store.record_received(session.upload_id, attempt="a1", size_bytes=5, sha256="0" * 64)
    moved = await store.finish_put(session.upload_id, attempt="a1", to=State.STORED)
    assert moved is not None
    return moved


async def state_of(database: Database, session: UploadSession) -> State:
    found = await database.store.read(session.upload_id)
    assert found is not None
    return found.state


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


async def test_of_many_claims_at_once_exactly_one_wins(database: Database) -> None:
    stores = [database.store, database.another()]
    for _ in range(10):
        session = await database.store.create(new(pending_max=1_000))
        won: list[str] = []

        async def claim(turn: int, session: UploadSession = session, won: list[str] = won) -> None:
            moved = await stores[turn % 2].claim_put(
                session.upload_id, attempt=f"a{turn}", object_key=f"{session.upload_id}/{turn}",
                body_ms=MINUTE,
            )  # fmt: skip
            if moved is not None:
                won.append(moved.attempt or "")

        async with anyio.create_task_group() as group:
            for turn in range(8):
                group.start_soon(claim, turn)
        found = await database.store.read(session.upload_id)
        assert found is not None
        assert won == [found.attempt]


@pytest.mark.parametrize("to", [State.STORED, State.FAILED, State.UNKNOWN])
async def test_receiving_ends_for_its_own_attempt_only(database: Database, to: State) -> None:
    session = await claimed(database)
    store = database.store
    assert await store.finish_put(session.upload_id, attempt="other", to=to) is None
    moved = await store.finish_put(session.upload_id, attempt="a1", to=to, reason="E7015")
    assert moved is not None
    assert (moved.state, moved.reason) == (to, "E7015")


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


async def test_a_revocation_while_receiving_takes_effect_when_it_commits(
    database: Database,
) -> None:
    session = await claimed(database)
    noted = await database.store.revoke(session.upload_id)
    assert noted is not None
    assert (noted.state, noted.revoke_requested) == (State.RECEIVING, True)
    moved = await database.store.finish_put(session.upload_id, attempt="a1", to=State.STORED)
    assert moved is not None
    assert moved.state is State.REVOKED


async def test_a_failure_while_a_revocation_waits_is_a_failure(database: Database) -> None:
    session = await claimed(database)
    await database.store.revoke(session.upload_id)
    moved = await database.store.finish_put(session.upload_id, attempt="a1", to=State.FAILED)
    assert moved is not None
    assert moved.state is State.FAILED


async def test_pending_and_stored_are_revoked_at_once_and_placing_is_not(
    database: Database,
) -> None:
    store = database.store
    pending, kept = await store.create(new()), await stored(database)
    for session in (pending, kept):
        moved = await store.revoke(session.upload_id)
        assert moved is not None
        assert moved.state is State.REVOKED
    used = await stored(database)
    await store.claim_place(used.upload_id, attempt="p", target="{}", lease_ms=MINUTE)
    assert await store.revoke(used.upload_id) is None
    assert await state_of(database, used) is State.PLACING


async def test_a_removed_credential_loses_its_unused_secrets_only(database: Database) -> None:
    store = database.store
    mine = await store.create(new())
    elsewhere = await store.create(new(workspace="green"))
    foreign = await store.create(new(credential_id="static:two"))
    kept = await stored(database)
    under_way = await claimed(database)
    download = await stored(database, kind="download")
    revoked = await store.revoke_credential("static:one", "blue")
    assert {one.upload_id for one in revoked} == {
        mine.upload_id, under_way.upload_id, download.upload_id,
    }  # fmt: skip
    assert await state_of(database, mine) is State.REVOKED
    assert await state_of(database, kept) is State.STORED
    assert await state_of(database, foreign) is State.PENDING
    assert await state_of(database, elsewhere) is State.PENDING
    assert len(await store.revoke_credential("static:one", None)) == 2  # elsewhere, under way


async def test_the_21st_pending_session_is_refused_and_a_revocation_frees_it(
    database: Database,
) -> None:
    store = database.store
    sessions = [await store.create(new()) for _ in range(19)]
    receiving = await claimed(database)
    with pytest.raises(UploadQuotaError) as refusal:
        await store.create(new())
    assert refusal.value.quota == "pending"
    assert (await store.create(new(workspace="green"))).state is State.PENDING
    await store.revoke(sessions[0].upload_id)
    await store.create(new())
    await store.finish_put(receiving.upload_id, attempt="a1", to=State.FAILED)
    await store.create(new())
    with pytest.raises(UploadQuotaError):
        await store.create(new())
    await database.advance(10 * MINUTE)  # expired, though no sweep has come by
    await store.create(new())


async def test_the_121st_session_of_a_rolling_hour_is_refused_even_if_all_are_revoked(
    database: Database,
) -> None:
    store = database.store

    async def fill(count: int) -> None:
        for _ in range(count):
            await store.revoke((await store.create(new())).upload_id)

    await fill(1)
    await database.advance(59 * MINUTE)
    await fill(119)
    with pytest.raises(UploadQuotaError) as refusal:
        await store.create(new())
    assert refusal.value.quota == "hourly"
    await database.advance(MINUTE)  # only the first one has left the hour
    await fill(1)
    with pytest.raises(UploadQuotaError):
        await store.create(new())


async def test_of_forty_creates_at_nineteen_exactly_one_succeeds(database: Database) -> None:
    stores = [database.store, database.another()]
    for _ in range(19):
        await stores[0].create(new())
    refused: list[str] = []

    async def create(turn: int) -> None:
        try:
            await stores[turn % 2].create(new())
        except UploadQuotaError as error:
            refused.append(error.quota)

    async with anyio.create_task_group() as group:
        for turn in range(40):
            group.start_soon(create, turn)
    assert refused == ["pending"] * 39


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
