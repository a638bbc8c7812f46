"""Nobody pays for a file that cannot be used, and storage that is away loses nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.upload_parts import ME, BlobFaults, Database, Sink, chunked, config

from agent_sandbox.errors import UploadBusyError, UploadStorageError
from agent_sandbox.uploads.models import Principal, StoredUpload
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import Phase

DATA = b"some bytes"


class Till:
    """A charge hook that notes whom it charged, and fails where it is told to."""

    def __init__(self, fails: Exception | None = None) -> None:
        self.fails = fails
        self.charged: list[str] = []

    async def __call__(self, upload: StoredUpload, principal: Principal) -> None:
        if self.fails is not None:
            raise self.fails
        self.charged.append(upload.upload_id)


def open_files() -> set[str]:
    """Return what this process has open."""
    return {os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")}


async def stored(service: UploadService) -> str:
    session, secret = await service.create(ME, "a.bin", len(DATA))
    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    return (await service.receive(await service.claim(admitted), chunked(DATA))).upload_id


async def test_storage_that_is_away_costs_nothing_and_says_to_call_again(
    database: Database, faults: BlobFaults
) -> None:
    till, sink = Till(), Sink()
    service = UploadService(config(), database.store, faults, charge=till)
    name = await stored(service)
    faults.away = True
    with pytest.raises(UploadBusyError):  # and not that nothing was kept
        await service.place(ME, name, sink, "/a")
    assert (await service.get(ME, name)).place_phase is Phase.CLOSED
    assert (till.charged, sink.calls) == ([], 0)
    faults.away = False
    await service.place(ME, name, sink, "/b")
    assert (till.charged, sink.written) == ([name], {"/b": DATA})


async def test_a_file_that_is_gone_costs_nothing(database: Database, faults: BlobFaults) -> None:
    till, sink = Till(), Sink()
    service = UploadService(config(), database.store, faults, charge=till)
    name = await stored(service)
    for key in [key async for key in faults.list_orphans(-60)]:
        await faults.delete(key)
    with pytest.raises(UploadStorageError):
        await service.place(ME, name, sink, "/a")
    assert (till.charged, sink.calls) == ([], 0)


async def test_a_charge_that_fails_leaves_the_file_closed(
    database: Database, faults: BlobFaults, tmp_path: Path
) -> None:
    service = UploadService(config(), database.store, faults, charge=Till(OSError("no")))
    name = await stored(service)
    with pytest.raises(OSError, match="no"):
        await service.place(ME, name, Sink(), "/a")
    assert not any(path.startswith(str(tmp_path / "blobs")) for path in open_files())
