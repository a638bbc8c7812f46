"""The one GET of a staged file."""

from __future__ import annotations

import os

import pytest
from tests.support.upload_parts import ME, BlobFaults, Database, chunked, sha256
from tests.uploads.service.test_receiving import DATA, objects

from agent_sandbox.errors import (
    DownloadUsedError,
    UploadBusyError,
    UploadOutcomeUnknownError,
    UploadSizeError,
)
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State


async def test_a_download_is_given_once_and_then_gone(
    service: UploadService, faults: BlobFaults
) -> None:
    data = os.urandom(700_000)
    session, secret = await service.stage_download(ME, "report.pdf", chunked(data), 2**20)
    assert (session.received_bytes, session.received_sha256) == (len(data), sha256(data))
    assert session.endpoint == f"/downloads/{session.upload_id}"
    admitted = await service.authorise(session.upload_id, session.endpoint, secret, kind="download")
    download = await service.claim_download(admitted)
    assert b"".join([chunk async for chunk in download]) == data
    for _ in range(2):
        await download.aclose()
    assert service.tally().bytes["out"] == len(data)
    assert await objects(faults) == []
    with pytest.raises(DownloadUsedError):
        await service.authorise(session.upload_id, session.endpoint, secret, kind="download")


async def test_a_download_over_its_bound_stages_nothing(
    service: UploadService, faults: BlobFaults
) -> None:
    with pytest.raises(UploadSizeError):
        await service.stage_download(ME, "a", chunked(bytes(101)), 100)
    assert await objects(faults) == []


async def test_storage_that_is_away_for_a_moment_does_not_use_a_download_up(
    service: UploadService, faults: BlobFaults
) -> None:
    session, _ = await service.stage_download(ME, "a", chunked(DATA), 2**20)
    faults.away = True
    with pytest.raises(UploadBusyError):
        await service.claim_download(session)
    faults.away = False
    assert (await service.get(ME, session.upload_id)).state is State.STORED
    download = await service.claim_download(session)
    assert [chunk async for chunk in download] == [DATA]
    await download.aclose()


@pytest.mark.parametrize("applied", [False, True])
async def test_a_get_whose_claim_was_not_answered_is_settled_by_its_token(
    database: Database, service: UploadService, applied: bool
) -> None:
    session, _ = await service.stage_download(ME, "a", chunked(DATA), 2**20)
    real = database.store.claim_place

    async def lost(*arguments: object, **named: object) -> object:
        if applied:
            await real(*arguments, **named)  # type: ignore[arg-type]  # passed on as it is
        raise UploadOutcomeUnknownError("unknown")

    database.store.claim_place = lost  # type: ignore[method-assign, assignment]  # the fault
    if not applied:
        with pytest.raises(UploadBusyError):
            await service.claim_download(session)
        database.store.claim_place = real  # type: ignore[method-assign]
    download = await service.claim_download(session)
    assert [chunk async for chunk in download] == [DATA]
    await download.aclose()


async def test_a_download_that_breaks_off_is_used_up(
    service: UploadService, faults: BlobFaults
) -> None:
    session, _ = await service.stage_download(ME, "a", chunked(bytes(10**6)), 2**20)
    download = await service.claim_download(session)
    await anext(download)
    await download.aclose()
    assert await objects(faults) == []
    assert (await service.get(ME, session.upload_id)).state is State.PLACED
    never_read = await service.claim_download(
        (await service.stage_download(ME, "a", chunked(b"x"), 9))[0]
    )
    await never_read.aclose()
    assert await objects(faults) == []
