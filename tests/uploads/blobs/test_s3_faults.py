"""What a bucket may do to us, on two real servers: faults are told, hidden and survived."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.bad_bucket import bad_bucket, moto
from tests.support.upload_parts import ME, Sink, chunked, config

from agent_sandbox.errors import UploadBusyError, UploadOutcomeUnknownError, UploadStorageError
from agent_sandbox.uploads.blobs import BlobStore
from agent_sandbox.uploads.blobs.s3 import PART_BYTES, S3Blobs
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store.sqlite import SqliteStore


@pytest.fixture(scope="module")
def moto_settings() -> Iterator[dict[str, Any]]:
    with moto() as settings:
        yield settings


@pytest.fixture(params=["SeaweedFS", "moto"])
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    name = "s3_settings" if request.param == "SeaweedFS" else "moto_settings"
    found: dict[str, Any] = request.getfixturevalue(name)
    return found


async def put(blobs: S3Blobs, data: bytes) -> None:
    writer = await blobs.begin("ab/cd", len(data))
    try:
        for at in range(0, len(data), PART_BYTES):
            await writer.write([data[at : at + PART_BYTES]])
        await writer.commit()
    except BaseException:
        await writer.abort()
        raise


async def read(blobs: BlobStore) -> bytes:
    reader = await blobs.open("ab/cd")
    assert reader is not None
    try:
        return b"".join([chunk async for chunk in reader])
    finally:
        await reader.aclose()


# --- Faults that pass -----------------------------------------------------------------------


@pytest.mark.parametrize("action", ["refuse", "fail", "slow", "drop"])
@pytest.mark.parametrize("size", [5, 2 * PART_BYTES + 1])
async def test_a_fault_that_passes_is_one_object_with_the_right_bytes(
    settings: dict[str, Any], action: str, size: int
) -> None:
    def script(method: str, path: str, turn: int) -> str:
        return action if method == "PUT" and turn <= 2 else "pass"

    data = bytes(range(256)) * (size // 256 + 1)
    with bad_bucket(settings, script) as (blobs, seen):
        await put(blobs, data[:size])
        assert seen.count("PUT") >= (1 if action == "slow" else 3)
        assert hashlib.sha256(await read(blobs)).digest() == hashlib.sha256(data[:size]).digest()
        assert len([key async for key in blobs.list_orphans(-60)]) == 1


async def test_a_multipart_upload_whose_completion_is_refused_once_is_whole(
    settings: dict[str, Any],
) -> None:
    refused: list[str] = []

    def script(method: str, path: str, turn: int) -> str:
        if method == "POST" and "uploadId=" in path and not refused:
            refused.append(path)
            return "refuse"
        return "pass"

    with bad_bucket(settings, script) as (blobs, _):
        await put(blobs, b"ab" * PART_BYTES)
        assert refused
        assert await read(blobs) == b"ab" * PART_BYTES


# --- Faults that stay -----------------------------------------------------------------------


@pytest.mark.parametrize("action", ["refuse", "fail"])
@pytest.mark.parametrize("size", [5, PART_BYTES + 1])
async def test_a_bucket_that_is_away_leaves_the_outcome_unknown_and_shows_nothing(
    settings: dict[str, Any], action: str, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    with bad_bucket(settings, lambda method, path, turn: action) as (blobs, _):
        with pytest.raises(UploadOutcomeUnknownError) as refusal:
            await put(blobs, bytes(size))
        assert refusal.value.__suppress_context__
        with pytest.raises(UploadStorageError):
            await blobs.head("ab/cd")
        with pytest.raises(UploadStorageError):
            await blobs.open("ab/cd")
        with pytest.raises(UploadStorageError):
            await blobs.delete("ab/cd")
        with pytest.raises(UploadStorageError):
            assert [one async for one in blobs.list_orphans(0)]
    assert "secret" not in caplog.text


@pytest.mark.parametrize("action", ["hide", "swallow"])
async def test_a_put_that_was_applied_but_not_answered_is_unknown_and_found_by_head(
    settings: dict[str, Any], action: str
) -> None:
    def script(method: str, path: str, turn: int) -> str:
        return action if method == "PUT" else "pass"

    with bad_bucket(settings, script) as (blobs, _):
        with pytest.raises(UploadOutcomeUnknownError):
            await put(blobs, b"bytes")
        assert await blobs.head("ab/cd") == 5


@pytest.mark.parametrize("action", ["refuse", "fail"])
async def test_a_part_that_fails_ends_the_upload_without_an_object(
    settings: dict[str, Any], action: str
) -> None:
    def script(method: str, path: str, turn: int) -> str:
        return action if method == "PUT" and "partNumber=2" in path else "pass"

    with bad_bucket(settings, script) as (blobs, seen):
        with pytest.raises(UploadOutcomeUnknownError):
            await put(blobs, bytes(3 * PART_BYTES))
        assert await blobs.head("ab/cd") is None
        assert "DELETE" in seen  # the parts were dropped, not left to a lifecycle rule


async def test_a_torn_answer_is_no_end_of_an_object(settings: dict[str, Any]) -> None:
    def script(method: str, path: str, turn: int) -> str:
        return "tear" if method == "GET" and "list-type" not in path else "pass"

    with bad_bucket(settings, script) as (blobs, _):
        await put(blobs, b"bytes" * 100_000)
        with pytest.raises(UploadStorageError):
            await read(blobs)


# --- What they mean for a session -----------------------------------------------------------


@pytest.mark.parametrize("action", ["hide", "hide once", "swallow"])
@pytest.mark.parametrize("size", [9, PART_BYTES + 9])
async def test_an_upload_whose_publication_was_not_answered_is_stored_all_the_same(
    settings: dict[str, Any], tmp_path: Path, action: str, size: int
) -> None:
    body = b"x" * size
    hidden: list[str] = []
    last = "POST" if size > PART_BYTES else "PUT"

    def script(method: str, path: str, turn: int) -> str:
        publishes = method == last and (last == "PUT" or "uploadId=" in path)
        if action == "hide once" and publishes:  # the repeat meets what the first one did
            publishes = not hidden
            hidden.append(path)
        return action.removesuffix(" once") if publishes else "pass"

    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    with bad_bucket(settings, script) as (blobs, _):
        service = UploadService(config(), store, blobs)
        session, secret = await service.create(ME, "a", size)
        admitted = await service.authorise(session.upload_id, session.endpoint, secret)
        stored = await service.receive(await service.claim(admitted), chunked(body))
        assert stored.sha256 == hashlib.sha256(body).hexdigest()
        sink = Sink()
        await service.place(ME, session.upload_id, sink, "/a")
        assert sink.written == {"/a": body}
    await store.close()


async def test_a_torn_read_places_nothing_and_the_next_call_does(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    torn: list[str] = []

    def script(method: str, path: str, turn: int) -> str:
        if method == "GET" and "list-type" not in path and not torn:
            torn.append(path)
            return "tear"
        return "pass"

    store = SqliteStore(tmp_path / "db")
    await store.migrate()
    with bad_bucket(settings, script) as (blobs, _):
        service = UploadService(config(), store, blobs)
        session, secret = await service.create(ME, "a", 600_000)
        admitted = await service.authorise(session.upload_id, session.endpoint, secret)
        await service.receive(await service.claim(admitted), chunked(b"y" * 600_000))
        sink = Sink()
        with pytest.raises(UploadBusyError):
            await service.place(ME, session.upload_id, sink, "/a")
        assert torn
        assert sink.written == {}
        assert (await service.get(ME, session.upload_id)).state is State.PLACING
        await service.place(ME, session.upload_id, sink, "/b")
        assert sink.written == {"/b": b"y" * 600_000}
    await store.close()
