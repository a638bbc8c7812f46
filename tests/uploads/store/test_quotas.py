"""What a workspace may open: counted where it is inserted. The clock stands still."""

from __future__ import annotations

import anyio
import pytest
from tests.support.upload_parts import Database
from tests.support.upload_rows import MINUTE, claimed, new

from agent_sandbox.errors import UploadQuotaError
from agent_sandbox.uploads.states import State


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
    for workspace in "abcdef":  # a race is not lost every time
        for _ in range(19):
            await stores[0].create(new(workspace=workspace))
        refused: list[str] = []

        async def create(
            turn: int, workspace: str = workspace, refused: list[str] = refused
        ) -> None:
            # Of callers of their own, since those of one caller share a statement anyway.
            wanted = new(workspace=workspace, credential_id=f"static:{turn}")
            try:
                await stores[turn % 2].create(wanted)
            except UploadQuotaError as error:
                refused.append(error.quota)

        async with anyio.create_task_group() as group:
            for turn in range(40):
                group.start_soon(create, turn)
        assert refused == ["pending"] * 39


async def test_creations_at_once_get_the_places_that_are_left_in_order(database: Database) -> None:
    names = [f"{turn:02}" for turn in range(30)]
    made: list[str] = []
    refused: list[str] = []

    async def create(name: str) -> None:
        try:
            made.append((await database.store.create(new(upload_id=name))).upload_id)
        except UploadQuotaError as error:
            refused.append(error.quota)

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(create, name)
    assert sorted(made) == names[:20]
    assert refused == ["pending"] * 10


async def test_the_hour_leaves_fewer_places_than_the_pending_ones(database: Database) -> None:
    refused: list[str] = []

    async def create() -> None:
        try:
            await database.store.create(new(hourly_max=7))
        except UploadQuotaError as error:
            refused.append(error.quota)

    async with anyio.create_task_group() as group:
        for _ in range(12):
            group.start_soon(create)
    assert refused == ["hourly"] * 5


async def test_uploads_and_downloads_are_counted_apart(database: Database) -> None:
    for kind in ("upload", "download"):
        for _ in range(20):
            await database.store.create(new(kind=kind))
        with pytest.raises(UploadQuotaError):
            await database.store.create(new(kind=kind))
