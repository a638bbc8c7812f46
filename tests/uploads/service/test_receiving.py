"""From the claimed attempt to the stored file: every way it can end."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import anyio
import pytest
from tests.support.upload_parts import ME, BlobFaults, Database, Sink, chunked, config, sha256

from agent_sandbox.errors import (
    UploadBodyError,
    UploadBodyTimeoutError,
    UploadBusyError,
    UploadConflictError,
    UploadFailedError,
    UploadOutcomeUnknownError,
    UploadRevokedError,
    UploadStorageError,
    UploadStorageFullError,
)
from agent_sandbox.uploads.models import Attempt, StoredUpload
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State

DATA = b"sixteen bytes..."


async def attempt(
    service: UploadService, size: int = len(DATA), digest: str | None = None
) -> Attempt:
    session, secret = await service.create(ME, "a.bin", size, digest)
    return await service.claim(await service.authorise(session.upload_id, session.endpoint, secret))


async def objects(faults: BlobFaults) -> list[str]:
    return [key async for key in faults.list_orphans(-60)]


async def is_failed(service: UploadService, faults: BlobFaults, one: Attempt, code: str) -> None:
    found = await service.get(ME, one.session.upload_id)
    assert (found.state, found.reason) == (State.FAILED, code)
    assert found.object_key is None
    assert await objects(faults) == []
    with pytest.raises(UploadFailedError):
        await service.place(ME, one.session.upload_id, Sink(), "/a")


@pytest.mark.parametrize("size", [0, 1, 65_536, 262_144, 262_145, 3_000_001])
@pytest.mark.parametrize("chunk", [1_000, 65_536, 10**7])
async def test_a_whole_body_is_stored_with_its_size_and_digest(
    service: UploadService, size: int, chunk: int
) -> None:
    data = os.urandom(size)
    one = await attempt(service, size, sha256(data))
    stored = await service.receive(one, chunked(data, chunk))
    assert (stored.state, stored.size_bytes, stored.sha256) == (State.STORED, size, sha256(data))
    sink = Sink()
    await service.place(ME, stored.upload_id, sink, "/a")
    assert sink.written == {"/a": data}


@pytest.mark.parametrize("body", [b"", DATA[:-1], DATA + b"!", DATA * 100_000])
async def test_a_short_or_long_body_fails_and_keeps_nothing(
    service: UploadService, faults: BlobFaults, body: bytes
) -> None:
    one = await attempt(service)
    with pytest.raises(UploadBodyError):
        await service.receive(one, chunked(body))
    await is_failed(service, faults, one, "E7015")


async def test_another_digest_fails_and_keeps_nothing(
    service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service, digest="0" * 64)
    with pytest.raises(UploadBodyError):
        await service.receive(one, chunked(DATA))
    await is_failed(service, faults, one, "E7015")


async def test_a_body_that_does_not_end_in_time_fails_and_keeps_nothing(
    database: Database, faults: BlobFaults
) -> None:
    service = UploadService(config(body_deadline_s=0.2), database.store, faults)
    one = await attempt(service)

    async def never_ends() -> AsyncIterator[bytes]:
        yield DATA[:3]
        await anyio.sleep_forever()

    with pytest.raises(UploadBodyTimeoutError):
        await service.receive(one, never_ends())
    await is_failed(service, faults, one, "E7016")


@pytest.mark.parametrize("error", [UploadBodyTimeoutError(), RuntimeError("a secret")])
async def test_what_the_connection_raises_is_passed_on_after_the_failure_is_written(
    service: UploadService, faults: BlobFaults, error: Exception
) -> None:
    one = await attempt(service)

    async def breaks() -> AsyncIterator[bytes]:
        yield DATA[:3]
        raise error

    with pytest.raises(type(error)):
        await service.receive(one, breaks())
    await is_failed(service, faults, one, getattr(error, "code", "E7006"))


@pytest.mark.parametrize("size", [16, 2_000_000])
async def test_a_cancelled_body_fails_and_keeps_nothing(
    service: UploadService, faults: BlobFaults, size: int
) -> None:
    one = await attempt(service, size)
    half = anyio.Event()

    async def stalls() -> AsyncIterator[bytes]:
        async for chunk in chunked(bytes(size - 1)):
            yield chunk
        half.set()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(service.receive, one, stalls())
        await half.wait()
        group.cancel_scope.cancel()
    await is_failed(service, faults, one, "E7006")


async def test_a_cancellation_after_the_body_is_held_back_until_it_is_stored(
    service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service)
    async with anyio.create_task_group() as group:

        async def whole() -> AsyncIterator[bytes]:
            yield DATA
            # The body is whole; what is left to do has no await that could be cut short.

        commit = faults.begin

        async def begin(key: str, size: int) -> object:
            writer = await commit(key, size)
            real = writer.commit

            async def cancelled_commit() -> None:
                group.cancel_scope.cancel()
                await real()

            writer.commit = cancelled_commit  # type: ignore[method-assign]  # that is the fault
            return writer

        faults.begin = begin  # type: ignore[method-assign, assignment]  # that is the fault
        group.start_soon(service.receive, one, whole())
    assert (await service.get(ME, one.session.upload_id)).state is State.STORED


async def test_a_revocation_meanwhile_takes_effect_at_the_commit(
    service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service)

    async def revoked_meanwhile() -> AsyncIterator[bytes]:
        yield DATA[:3]
        found = await service.revoke(ME, one.session.upload_id)
        assert found.state is State.RECEIVING
        yield DATA[3:]

    with pytest.raises(UploadRevokedError):
        await service.receive(one, revoked_meanwhile())
    assert (await service.get(ME, one.session.upload_id)).state is State.REVOKED
    assert await objects(faults) == []


@pytest.mark.parametrize("error", [UploadStorageFullError(), UploadStorageError()])
async def test_a_definite_fault_of_the_storage_fails_the_session(
    service: UploadService, faults: BlobFaults, error: Exception
) -> None:
    one = await attempt(service)
    faults.commit = error
    with pytest.raises(type(error)):
        await service.receive(one, chunked(DATA))
    await is_failed(service, faults, one, error.code)  # type: ignore[attr-defined]  # both have it


async def test_a_publication_without_an_answer_is_settled_by_size_and_digest(
    service: UploadService, faults: BlobFaults
) -> None:
    faults.commit, faults.late = UploadOutcomeUnknownError("receiving"), True
    stored = await service.receive(await attempt(service), chunked(DATA))
    assert stored.state is State.STORED
    faults.late = False
    lost = await attempt(service)
    with pytest.raises(UploadFailedError):
        await service.receive(lost, chunked(DATA))
    assert (await service.get(ME, lost.session.upload_id)).state is State.FAILED


async def test_what_cannot_be_told_keeps_the_bytes_and_is_reconciled_by_place(
    service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service)
    faults.commit, faults.late, faults.away = UploadOutcomeUnknownError("receiving"), True, True
    with pytest.raises(UploadOutcomeUnknownError) as refusal:
        await service.receive(one, chunked(DATA))
    assert refusal.value.state == "unknown"
    name = one.session.upload_id
    assert (await service.get(ME, name)).state is State.UNKNOWN
    for _ in range(2):
        with pytest.raises(UploadOutcomeUnknownError):
            await service.place(ME, name, Sink(), "/a")
        with pytest.raises(UploadOutcomeUnknownError):
            await service.revoke(ME, name)
        await service.sweep()
    faults.away = False
    sink = Sink()
    await service.place(ME, name, sink, "/a")
    assert sink.written == {"/a": DATA}


async def test_a_commit_whose_answer_is_lost_is_settled_by_reading_again(
    database: Database, service: UploadService
) -> None:
    one = await attempt(service)
    real = database.store.finish_put
    lost: list[bool] = []

    async def finish(*arguments: object, **named: object) -> object:
        done = await real(*arguments, **named)  # type: ignore[arg-type]  # passed on as it is
        if not lost:
            lost.append(True)
            raise UploadOutcomeUnknownError("unknown")
        return done

    database.store.finish_put = finish  # type: ignore[method-assign, assignment]  # the fault
    stored = await service.receive(one, chunked(DATA))
    assert stored.state is State.STORED


async def test_a_database_that_stays_away_leaves_the_outcome_to_recovery(
    database: Database, service: UploadService
) -> None:
    one = await attempt(service)
    real = database.store.finish_put

    async def busy(*arguments: object, **named: object) -> object:
        raise UploadBusyError

    database.store.finish_put = busy  # type: ignore[method-assign, assignment]  # the fault
    with pytest.raises(UploadOutcomeUnknownError):
        await service.receive(one, chunked(DATA))
    database.store.finish_put = real  # type: ignore[method-assign]  # mended
    assert await service.recover() == 0  # its time is not over
    await database.advance(120_000)
    assert await service.recover() == 1
    assert (await service.get(ME, one.session.upload_id)).state is State.STORED


async def test_an_attempt_that_recovery_gave_up_publishes_nothing(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service)

    async def slow() -> AsyncIterator[bytes]:
        yield DATA
        await database.advance(121_000)
        assert await service.recover() == 1

    with pytest.raises(UploadFailedError):
        await service.receive(one, slow())
    await is_failed(service, faults, one, "E7006")


async def test_a_lost_claim_is_settled_by_its_token(
    database: Database, service: UploadService
) -> None:
    session, secret = await service.create(ME, "a", len(DATA))
    real = database.store.claim_put

    async def lost(*arguments: object, **named: object) -> object:
        await real(*arguments, **named)  # type: ignore[arg-type]  # passed on as it is
        raise UploadOutcomeUnknownError("unknown")

    database.store.claim_put = lost  # type: ignore[method-assign, assignment]  # the fault
    one = await service.claim(session)
    assert (await service.receive(one, chunked(DATA))).state is State.STORED
    assert secret


async def test_a_lost_claim_that_another_request_won_meanwhile_is_a_conflict(
    database: Database, service: UploadService
) -> None:
    session, _secret = await service.create(ME, "a", len(DATA))
    real = database.store.claim_put

    async def lost(*arguments: object, **named: object) -> object:
        await real(*arguments, **{**named, "attempt": "of another"})  # type: ignore[arg-type]
        raise UploadOutcomeUnknownError("unknown")

    database.store.claim_put = lost  # type: ignore[method-assign, assignment]  # the fault
    with pytest.raises(UploadConflictError):
        await service.claim(session)


def test_a_stored_upload_shows_no_key() -> None:
    assert "key" not in repr(StoredUpload("id", State.STORED, 1, "0" * 64, "a"))


async def test_a_database_that_goes_away_under_a_body_never_says_to_send_again(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service)
    real = database.store.record_received

    async def busy(*arguments: object, **named: object) -> object:
        raise UploadBusyError

    database.store.record_received = busy  # type: ignore[method-assign, assignment]  # the fault
    with pytest.raises(UploadStorageError):
        await service.receive(one, chunked(DATA))
    database.store.record_received = real  # type: ignore[method-assign]  # mended
    await is_failed(service, faults, one, "E7018")


async def test_a_claim_that_cannot_be_looked_up_is_not_called_unused(
    database: Database, service: UploadService
) -> None:
    session, _secret = await service.create(ME, "a", len(DATA))
    real = database.store.claim_put, database.store.read

    async def lost(*arguments: object, **named: object) -> object:
        await real[0](*arguments, **named)  # type: ignore[arg-type]  # passed on as it is
        raise UploadOutcomeUnknownError("unknown")

    async def busy(*arguments: object, **named: object) -> object:
        raise UploadBusyError

    database.store.claim_put = lost  # type: ignore[method-assign, assignment]  # the faults
    database.store.read = busy  # type: ignore[method-assign, assignment]
    with pytest.raises(UploadOutcomeUnknownError):
        await service.claim(session)
    database.store.read = real[1]  # type: ignore[method-assign]  # mended
    assert (await service.get(ME, session.upload_id)).state is State.RECEIVING


async def test_a_digest_may_be_declared_in_capitals(service: UploadService) -> None:
    session, _secret = await service.create(ME, "a", len(DATA), sha256(DATA).upper())
    stored = await service.receive(await service.claim(session), chunked(DATA))
    assert (stored.state, stored.sha256) == (State.STORED, sha256(DATA))
