"""From the claim of the one PUT to its end, and revocation. The clock stands still."""

from __future__ import annotations

import anyio
import pytest
from tests.support.upload_parts import Database
from tests.support.upload_rows import MINUTE, claimed, new, state_of, stored

from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import State


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
