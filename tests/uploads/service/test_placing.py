"""The one use of a file: idempotent, joined, reconciled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.upload_parts import ME, BlobFaults, Database, Sink, chunked, config

from agent_sandbox.errors import (
    FilePermissionError,
    FileSizeLimitError,
    TransferError,
    UploadCorruptError,
    UploadError,
    UploadExpiredError,
    UploadNotFoundError,
    UploadNotReadyError,
    UploadOutcomeUnknownError,
    UploadTimeoutError,
)
from agent_sandbox.uploads.models import Placed, PlaceTarget, Principal, StoredUpload
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import Phase, State

DATA = bytes(range(256)) * 4_000


async def stored(service: UploadService, data: bytes = DATA) -> str:
    session, secret = await service.create(ME, "a.bin", len(data))
    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    return (await service.receive(await service.claim(admitted), chunked(data))).upload_id


class Gate(Sink):
    """A sink that holds a placing open until the test lets it go."""

    def __init__(self, fails: BaseException | None = None) -> None:
        super().__init__(fails)
        self.entered, self.leave = anyio.Event(), anyio.Event()

    async def place(
        self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
    ) -> Mapping[str, Any]:
        self.entered.set()
        await self.leave.wait()
        return await super().place(upload, data, target)


async def test_a_file_is_placed_once_and_its_bytes_go_at_once(
    service: UploadService, faults: BlobFaults
) -> None:
    name, sink = await stored(service), Sink()
    placed = await service.place(ME, name, sink, "/a", "sandbox")
    assert placed.target == PlaceTarget("/a", "sandbox")
    assert placed.result == {"path": "/a", "bytes_written": len(DATA)}
    assert not placed.replayed
    assert [key async for key in faults.list_orphans(-60)] == []


async def test_a_repeat_returns_the_record_whatever_it_asks_for(service: UploadService) -> None:
    name, sink = await stored(service), Sink()
    first = await service.place(ME, name, sink, "/a", "one")
    again = await service.place(ME, name, sink, "/b", "two")
    assert again.replayed
    assert (again.target, again.result, again.upload) == (
        first.target,
        first.result,
        first.upload,
    )
    assert sink.calls == 1


async def test_a_file_that_has_not_arrived_is_not_ready(service: UploadService) -> None:
    session, _ = await service.create(ME, "a", 1)
    with pytest.raises(UploadNotReadyError) as refusal:
        await service.place(ME, session.upload_id, Sink(), "/a")
    assert refusal.value.state == "pending"
    await service.claim(session)
    with pytest.raises(UploadNotReadyError):
        await service.place(ME, session.upload_id, Sink(), "/a")


async def test_a_file_that_nobody_used_for_an_hour_has_expired(
    database: Database, service: UploadService
) -> None:
    name = await stored(service)
    await database.advance(3_600_000)
    with pytest.raises(UploadExpiredError):
        await service.place(ME, name, Sink(), "/a")


@pytest.mark.parametrize("replica", [False, True])
async def test_two_calls_at_once_write_once_and_get_the_same(
    database: Database, service: UploadService, faults: BlobFaults, replica: bool
) -> None:
    name, gate = await stored(service), Gate()
    other = UploadService(config(), database.another(), faults) if replica else service
    results: list[Placed] = []

    async def place(one: UploadService, path: str) -> None:
        results.append(await one.place(ME, name, gate, path))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(place, service, "/a")
            await gate.entered.wait()
            group.start_soon(place, other, "/b")
            await anyio.sleep(0.05)
            gate.leave.set()
    assert gate.calls == 1
    assert [one.target.path for one in results] == ["/a", "/a"]
    assert results[0].result == results[1].result


@pytest.mark.parametrize(
    ("error", "joined"),
    [
        (FilePermissionError(), FilePermissionError),
        (FileSizeLimitError(7), TransferError),
        (TransferError(), TransferError),
    ],
)
async def test_a_definite_failure_is_shared_and_the_next_call_tries_again(
    service: UploadService, error: Exception, joined: type[Exception]
) -> None:
    name, gate = await stored(service), Gate(fails=error)
    raised: list[type[Exception]] = []

    async def place() -> None:
        try:
            await service.place(ME, name, gate, "/a")
        except UploadError:
            raise
        except (FilePermissionError, FileSizeLimitError, TransferError) as failure:
            raised.append(type(failure))

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(place)
            await gate.entered.wait()
            group.start_soon(place)
            await anyio.sleep(0.05)
            gate.leave.set()
    assert sorted(raised, key=str) == sorted([type(error), joined], key=str)
    found = await service.get(ME, name)
    assert (found.state, found.place_phase) == (State.PLACING, Phase.CLOSED)
    gate.fails = None
    placed = await service.place(ME, name, gate, "/b")
    assert (placed.target.path, placed.replayed) == ("/b", False)
    assert (await service.get(ME, name)).place_count == 2


UNKNOWN = [UploadTimeoutError(), UploadOutcomeUnknownError("x"), RuntimeError("a secret")]


@pytest.mark.parametrize("error", UNKNOWN)
async def test_an_unknown_outcome_is_found_out_before_anything_is_written_again(
    service: UploadService, error: Exception
) -> None:
    name, sink = await stored(service), Sink(fails=error)
    wanted = type(error) if isinstance(error, RuntimeError) else UploadOutcomeUnknownError
    with pytest.raises(wanted):
        await service.place(ME, name, sink, "/a")
    sink.fails = None
    sink.inspected = {"path": "/a", "bytes_written": len(DATA)}
    placed = await service.place(ME, name, sink, "/b")
    assert (placed.target.path, placed.replayed) == ("/a", True)
    assert (sink.calls, sink.inspections) == (1, 1)


async def test_an_attempt_that_did_nothing_is_followed_by_the_next(
    service: UploadService,
) -> None:
    name, sink = await stored(service), Sink(fails=UploadTimeoutError())
    with pytest.raises(UploadOutcomeUnknownError):
        await service.place(ME, name, sink, "/a")
    sink.fails = None
    placed = await service.place(ME, name, sink, "/b")
    assert (placed.target.path, placed.replayed, sink.calls) == ("/b", False, 2)


async def test_an_outcome_that_cannot_be_told_keeps_the_bytes(
    database: Database, service: UploadService
) -> None:
    class Blind(Sink):
        async def inspect(self, upload: StoredUpload, target: PlaceTarget) -> Mapping[str, Any]:
            raise TransferError

    name, sink = await stored(service), Blind(fails=UploadTimeoutError())
    for _ in range(2):
        with pytest.raises(UploadOutcomeUnknownError) as refusal:
            await service.place(ME, name, sink, "/a")
        assert refusal.value.state == "placing"
        await database.advance(2 * 86_400_000)
        await service.sweep()
    assert (await service.get(ME, name)).object_key is not None
    assert sink.calls == 1


async def test_a_use_that_takes_too_long_is_unknown(database: Database, faults: BlobFaults) -> None:
    service = UploadService(config(place_timeout_s=0.2, place_lease_s=0.3), database.store, faults)
    name, gate = await stored(service), Gate()
    with pytest.raises(UploadOutcomeUnknownError):
        await service.place(ME, name, gate, "/a")
    assert (await service.get(ME, name)).place_phase is Phase.UNKNOWN


async def test_a_cancelled_use_is_unknown_and_a_crashed_one_after_its_lease(
    database: Database, service: UploadService
) -> None:
    name, gate = await stored(service), Gate()
    async with anyio.create_task_group() as group:
        group.start_soon(service.place, ME, name, gate, "/a")
        await gate.entered.wait()
        group.cancel_scope.cancel()
    assert (await service.get(ME, name)).place_phase is Phase.UNKNOWN
    crashed = await stored(service)
    await database.store.claim_place(crashed, attempt="p", target="{}", lease_ms=180_000)
    await database.advance(180_000)
    sink = Sink()
    await service.place(ME, crashed, sink, "/b")
    assert (sink.inspections, sink.calls) == (1, 1)


@pytest.mark.parametrize("size", [1, 300_000])
async def test_a_flipped_bit_fails_on_the_digest_and_writes_nothing(
    service: UploadService, tmp_path: Path, size: int
) -> None:
    name = await stored(service, bytes(size))
    [path] = [one for one in (tmp_path / "blobs").rglob("*") if one.is_file()]
    flipped = bytearray(path.read_bytes())
    flipped[0] ^= 1
    path.write_bytes(flipped)
    sink = Sink()
    for _ in range(2):
        with pytest.raises(UploadCorruptError):
            await service.place(ME, name, sink, "/a")
    assert sink.written == {}


async def test_a_charge_runs_at_use_only_and_its_refusal_writes_nothing(
    database: Database, faults: BlobFaults
) -> None:
    charged: list[tuple[str, str]] = []
    refuses = [True]

    async def charge(upload: StoredUpload, principal: Principal) -> None:
        charged.append((upload.upload_id, principal.workspace))
        if refuses:
            raise ValueError(refuses.pop())

    service = UploadService(config(), database.store, faults, charge=charge)
    name, sink = await stored(service), Sink()
    assert charged == []
    with pytest.raises(ValueError, match="True"):
        await service.place(ME, name, sink, "/a")
    assert sink.calls == 0
    await service.place(ME, name, sink, "/a")
    await service.place(ME, name, sink, "/a")
    assert charged == [(name, "blue")] * 2


async def test_a_charge_that_fails_leaves_nothing_to_look_for(
    database: Database, faults: BlobFaults
) -> None:
    async def charge(upload: StoredUpload, principal: Principal) -> None:
        raise OSError("the shop is closed")

    service = UploadService(config(), database.store, faults, charge=charge)
    name, sink = await stored(service), Sink()
    with pytest.raises(OSError, match="shop"):
        await service.place(ME, name, sink, "/a")
    assert (await service.get(ME, name)).place_phase is Phase.CLOSED
    with pytest.raises(OSError, match="shop"):
        await service.place(ME, name, sink, "/a")
    assert (sink.inspections, sink.calls) == (0, 0)


async def test_a_file_that_nobody_reads_is_closed(
    service: UploadService, faults: BlobFaults
) -> None:
    closed: list[str] = []
    real = faults.open

    async def opened(key: str) -> Any:
        reader: Any = await real(key)
        close = reader.aclose

        async def aclose() -> None:
            closed.append(key)
            await close()

        reader.aclose = aclose
        return reader

    class Careless(Sink):
        async def place(
            self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
        ) -> Mapping[str, Any]:
            return {}

    faults.open = opened  # type: ignore[method-assign]  # looks at every reader
    await service.place(ME, await stored(service), Careless(), "/a")
    session, _ = await service.stage_download(ME, "a", chunked(b"x"), 9)
    await (await service.claim_download(session)).aclose()
    assert len(set(closed)) == 2


async def test_a_record_whose_answer_is_lost_is_settled_by_reading_again(
    database: Database, service: UploadService
) -> None:
    name, sink = await stored(service), Sink()
    real = database.store.settle_place
    lost: list[bool] = []

    async def settle(*arguments: object, **named: object) -> object:
        done = await real(*arguments, **named)  # type: ignore[arg-type]  # passed on as it is
        if not lost:
            lost.append(True)
            raise UploadOutcomeUnknownError("unknown")
        return done

    database.store.settle_place = settle  # type: ignore[method-assign, assignment]  # the fault
    placed = await service.place(ME, name, sink, "/a")
    assert (placed.replayed, sink.calls) == (False, 1)


async def test_a_use_that_outlives_its_lease_gets_the_result_of_the_next_one(
    database: Database, service: UploadService
) -> None:
    name, slow, quick = await stored(service), Gate(), Sink()
    seen: list[Placed] = []

    async def first() -> None:
        seen.append(await service.place(ME, name, slow, "/slow"))

    async with anyio.create_task_group() as group:
        group.start_soon(first)
        await slow.entered.wait()
        await database.advance(180_000)
        done = await service.place(ME, name, quick, "/quick")
        slow.leave.set()
    assert (done.target.path, done.replayed) == ("/quick", False)
    assert (seen[0].target.path, seen[0].result, seen[0].replayed) == ("/quick", done.result, True)


async def test_looking_for_an_earlier_attempt_is_bounded(
    database: Database, faults: BlobFaults
) -> None:
    class Lost(Sink):
        async def inspect(self, upload: StoredUpload, target: PlaceTarget) -> None:
            await anyio.sleep_forever()

    service = UploadService(config(place_timeout_s=0.1, place_lease_s=0.2), database.store, faults)
    name = await stored(service)
    await database.store.claim_place(name, attempt="p", target="{}", lease_ms=0)
    with anyio.fail_after(30), pytest.raises(UploadOutcomeUnknownError):
        await service.place(ME, name, Lost(), "/a")


async def test_a_download_is_not_placed(service: UploadService) -> None:
    session, _secret = await service.stage_download(ME, "a", chunked(b"x"), 9)
    sink = Sink()
    with pytest.raises(UploadNotFoundError):
        await service.place(ME, session.upload_id, sink, "/a")
    assert sink.calls == 0
    assert (await service.get(ME, session.upload_id)).state is State.STORED


@pytest.mark.parametrize("fault", ["flipped", "longer", "shorter"])
async def test_a_file_that_is_not_what_was_stored_is_never_handed_out_whole(
    service: UploadService, tmp_path: Path, fault: str
) -> None:
    data = bytes(600_000)  # several chunks
    name = await stored(service, data)
    [path] = [one for one in (tmp_path / "blobs").rglob("*") if one.is_file()]
    changed = {"flipped": data[:-1] + b"x", "longer": data * 3, "shorter": data[:-1]}
    path.write_bytes(changed[fault])
    got = [0]

    class Greedy(Sink):
        async def place(
            self, upload: StoredUpload, data: AsyncIterator[bytes], target: PlaceTarget
        ) -> Mapping[str, Any]:
            async for chunk in data:
                got[0] += len(chunk)  # as they come
            return {}

    with pytest.raises(UploadCorruptError):
        await service.place(ME, name, Greedy(), "/a")
    assert 0 < got[0] < len(data)
