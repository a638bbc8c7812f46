"""Sweep and recovery."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.upload_parts import ME, BlobFaults, Database, Sink, chunked, config, sha256

from agent_sandbox.errors import UploadBusyError, UploadExpiredError, UploadNotFoundError
from agent_sandbox.uploads.audit import AuditEvent
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State

DATA = b"some bytes"
DAY = 86_400_000


async def objects(faults: BlobFaults) -> list[str]:
    return [key async for key in faults.list_orphans(-60)]


async def stored(service: UploadService) -> str:
    session, secret = await service.create(ME, "a.bin", len(DATA))
    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    return (await service.receive(await service.claim(admitted), chunked(DATA))).upload_id


async def crashed(
    database: Database, service: UploadService, faults: BlobFaults, step: str
) -> UploadSession:
    """Do what a PUT does up to a step, and stop as a killed process would."""
    session, _ = await service.create(ME, "a.bin", len(DATA))
    attempt = await service.claim(session)
    if step == "claimed":
        return session
    writer = await faults.begin(attempt.session.object_key or "", len(DATA))
    await writer.write([DATA if step != "other bytes" else DATA[::-1]])
    await database.store.record_received(
        session.upload_id, attempt=attempt.token, size_bytes=len(DATA), sha256=sha256(DATA)
    )
    if step in ("published", "other bytes"):
        await writer.commit()
    else:
        await writer.abort()
    return session


CRASHES = [
    ("claimed", State.FAILED),
    ("recorded", State.FAILED),
    ("published", State.STORED),
    ("other bytes", State.FAILED),
]


@pytest.mark.parametrize(("step", "wanted"), CRASHES)
@pytest.mark.parametrize("sole", [False, True])
async def test_a_crash_is_settled_by_what_was_published(
    database: Database, service: UploadService, faults: BlobFaults,
    step: str, wanted: State, sole: bool,
) -> None:  # fmt: skip
    session = await crashed(database, service, faults, step)
    assert await service.recover() == 0
    if not sole:
        await database.advance(120_000)
    assert await service.recover(abandon_all=sole) == 1
    assert (await service.get(ME, session.upload_id)).state is wanted
    assert len(await objects(faults)) == (wanted is State.STORED)
    assert await service.recover(abandon_all=sole) == 0


async def test_a_revocation_before_the_crash_is_kept(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    session = await crashed(database, service, faults, "published")
    await service.revoke(ME, session.upload_id)
    await service.recover(abandon_all=True)
    assert (await service.get(ME, session.upload_id)).state is State.REVOKED
    assert await objects(faults) == []


async def test_recovery_without_the_storage_keeps_the_bytes_and_asks_again(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    session = await crashed(database, service, faults, "published")
    faults.away = True
    await service.recover(abandon_all=True)
    assert (await service.get(ME, session.upload_id)).state is State.UNKNOWN
    await database.advance(3 * DAY)
    assert (await service.sweep())["unknown"] == 1
    assert (await service.get(ME, session.upload_id)).state is State.UNKNOWN
    faults.away = False
    await service.sweep()
    assert (await service.get(ME, session.upload_id)).state is State.EXPIRED


async def test_the_sweep_follows_the_table(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    pending, _ = await service.create(ME, "a", 1)
    kept = await stored(service)
    used = await stored(service)
    await service.place(ME, used, Sink(), "/a")
    assert (await service.sweep())["expired"] == 0
    await database.advance(600_000)
    assert (await service.sweep())["expired"] == 1
    await database.advance(3_000_000)
    swept = await service.sweep()
    assert (swept["expired"], swept["deleted"], swept["removed"]) == (1, 1, 0)
    assert await objects(faults) == []
    assert (await service.place(ME, used, Sink(), "/a")).replayed
    await database.advance(DAY - 3_600_000)
    assert (await service.sweep())["removed"] == 3
    for name in (pending.upload_id, kept, used):
        with pytest.raises(UploadNotFoundError):
            await service.get(ME, name)


async def test_a_session_that_cannot_be_settled_holds_no_other_one_up(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    sessions = [await crashed(database, service, faults, "claimed") for _ in range(3)]
    stuck = sorted(session.upload_id for session in sessions)[0]  # they are settled in this order
    real = database.store.finish_put

    async def finish(upload_id: str, **named: Any) -> UploadSession | None:
        if upload_id == stuck:
            raise UploadBusyError
        return await real(upload_id, **named)

    database.store.finish_put = finish  # type: ignore[method-assign]  # the fault
    assert await service.recover(abandon_all=True) == 2
    database.store.finish_put = real  # type: ignore[method-assign]  # mended
    assert await service.recover(abandon_all=True) == 1


async def test_a_failed_delete_keeps_the_row_until_it_works(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    name = await stored(service)
    faults.deletes = False
    await service.revoke(ME, name)
    await database.advance(2 * DAY)
    swept = await service.sweep()
    assert (swept["kept"], swept["removed"]) == (1, 0)
    assert len(await objects(faults)) == 1
    faults.deletes = True
    swept = await service.sweep()
    assert (swept["deleted"], swept["removed"]) == (1, 1)
    assert await objects(faults) == []


async def test_only_old_objects_that_no_row_knows_are_orphans(
    service: UploadService, faults: BlobFaults, tmp_path: Path
) -> None:
    await stored(service)
    [known] = [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()]
    old, young = known.with_name("0" * 32), known.with_name("1" * 32)
    torn = tmp_path / "blobs" / "incoming" / "2"
    for path in (old, young, torn):
        path.write_bytes(b"x")
    for path in (old, torn, known):
        os.utime(path, (0, 0))
    assert (await service.sweep())["orphans"] == 2
    assert (known.exists(), young.exists()) == (True, True)
    assert (old.exists(), torn.exists()) == (False, False)


async def test_sweepers_placers_and_revokers_at_once_leave_nothing_half_done(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    replica = UploadService(config(), database.another(), faults)
    names = [await stored(service) for _ in range(12)]
    sink = Sink()
    await database.advance(3_600_000 - 1)

    async def place(name: str) -> None:
        with contextlib.suppress(UploadExpiredError):
            await service.place(ME, name, sink, f"/{name}")

    async with anyio.create_task_group() as group:
        for number, name in enumerate(names):
            group.start_soon(place, name)
            if number == 5:
                await database.advance(1)
                group.start_soon(service.sweep)
                group.start_soon(replica.sweep)
    for name in names:
        placed = (await service.get(ME, name)).state is State.PLACED
        assert sink.written.get(f"/{name}") == (DATA if placed else None)
    await service.sweep()
    assert await objects(faults) == []


async def test_the_upkeep_sweeps_again_after_a_sweep_that_failed(
    database: Database, faults: BlobFaults
) -> None:
    expired = anyio.Event()

    def observe(event: AuditEvent) -> None:
        if event.action == "expire":
            expired.set()

    service = UploadService(config(), database.store, faults, observer=observe)
    await service.create(ME, "a", 1)
    await database.advance(600_000)
    real = database.store.expire
    failed: list[bool] = []

    async def expire(*, keep_ms: int) -> list[UploadSession]:
        if not failed:
            failed.append(True)
            raise UploadBusyError
        return await real(keep_ms=keep_ms)

    database.store.expire = expire  # type: ignore[method-assign]  # the fault
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(service.run_upkeep, 0.01)
            await expired.wait()
            group.cancel_scope.cancel()
    assert failed


async def test_a_fault_of_any_kind_ends_neither_the_upkeep_nor_what_it_was_told_of(
    database: Database, faults: BlobFaults, caplog: pytest.LogCaptureFixture
) -> None:
    def observe(event: AuditEvent) -> None:
        raise RuntimeError("canary: an embedder's own")

    service = UploadService(config(), database.store, faults, observer=observe)
    upload_id = await stored(service)
    assert (await service.get(ME, upload_id)).state is State.STORED
    real = database.store.expire
    swept = anyio.Event()
    turns: list[int] = []

    async def expire(*, keep_ms: int) -> list[UploadSession]:
        turns.append(keep_ms)
        if len(turns) == 1:
            raise ValueError("canary: not of our tree")
        swept.set()
        return await real(keep_ms=keep_ms)

    database.store.expire = expire  # type: ignore[method-assign]  # the fault
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(service.run_upkeep, 0.01)
            await swept.wait()
            group.cancel_scope.cancel()
    assert "the sweep of uploads failed (ValueError)" in caplog.messages
    assert "an observer failed with RuntimeError" in caplog.messages
    assert "canary" not in caplog.text
