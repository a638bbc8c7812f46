"""Large bodies that fill slabs: the same results as chunks, and slabs that always come back."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.support.upload_parts import ME, BlobFaults, Database, Sink, config, sha256

from agent_sandbox.errors import UploadBodyError, UploadBodyTimeoutError, UploadStorageError
from agent_sandbox.uploads.blobs import BlobStore, BlobWriter, Parts
from agent_sandbox.uploads.models import Attempt
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.slabs import RING_SLABS, SLAB_BYTES, Slabs
from agent_sandbox.uploads.states import State

RING_BYTES = RING_SLABS * SLAB_BYTES
ODD = RING_BYTES + SLAB_BYTES + 4_099
"""The first slab comes again, and the last part is no whole block."""


class Filling:
    """A body that is put where it is wanted, out of some bytes.

    Args:
        data: The body.
        error: Raised where it is over and more is wanted.
    """

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self._data = memoryview(data)
        self._error = error or UploadBodyError()
        self.fills = True
        self.filled = 0
        self.buffers: list[int] = []

    async def fill(self, buffer: memoryview) -> None:
        await asyncio.sleep(0)
        part = self._data[: len(buffer)]
        self.filled = len(part)
        buffer[: len(part)] = part
        self._data = self._data[len(part) :]
        self.buffers.append(len(buffer))
        if len(part) < len(buffer):
            raise self._error

    def __aiter__(self) -> Filling:
        self.fills = False
        return self

    async def __anext__(self) -> bytes:
        chunk, self._data = bytes(self._data[:65_536]), self._data[65_536:]
        if not chunk:
            raise StopAsyncIteration
        return chunk


async def attempt(service: UploadService, size: int, digest: str | None = None) -> Attempt:
    session, secret = await service.create(ME, "a.bin", size, digest)
    return await service.claim(await service.authorise(session.upload_id, session.endpoint, secret))


@pytest.mark.parametrize("size", [RING_BYTES, RING_BYTES - 1, RING_BYTES + 1, ODD])
async def test_a_large_body_is_stored_with_its_size_and_digest(
    service: UploadService, size: int
) -> None:
    data = os.urandom(size)
    body = Filling(data)
    stored = await service.receive(await attempt(service, size, sha256(data)), body)
    assert (stored.state, stored.size_bytes, stored.sha256) == (State.STORED, size, sha256(data))
    assert sum(body.buffers) == size
    sink = Sink()
    await service.place(ME, stored.upload_id, sink, "/a")
    assert sink.written == {"/a": data}


async def test_both_kinds_of_storage_keep_what_slabs_held(
    database: Database, blobs: BlobStore
) -> None:
    data = os.urandom(ODD)
    service = UploadService(config(), database.store, blobs)
    body = Filling(data)
    stored = await service.receive(await attempt(service, ODD), body)
    assert body.buffers
    assert stored.sha256 == sha256(data)
    sink = Sink()
    await service.place(ME, stored.upload_id, sink, "/a")
    assert sink.written == {"/a": data}


@pytest.mark.parametrize("error", [None, UploadBodyTimeoutError(), RuntimeError("a secret")])
async def test_a_body_that_breaks_off_fails_and_is_counted_to_the_byte(
    service: UploadService, faults: BlobFaults, error: Exception | None
) -> None:
    one = await attempt(service, ODD)
    body = Filling(bytes(SLAB_BYTES + 77), error)
    with pytest.raises(type(error or UploadBodyError())):
        await service.receive(one, body)
    assert (await service.get(ME, one.session.upload_id)).state is State.FAILED
    assert [key async for key in faults.list_orphans(-60)] == []
    assert service.tally().bytes["in"] == SLAB_BYTES + 77
    await three_at_once(service)


async def test_a_disk_that_fails_in_mid_body_ends_the_session_and_frees_the_slabs(
    database: Database, faults: BlobFaults
) -> None:
    class Failing(BlobFaults):
        async def begin(self, key: str, size_bytes: int) -> BlobWriter:
            writer = await super().begin(key, size_bytes)
            write, count = writer.write, 0

            async def fails(parts: Parts, also: object = None) -> None:
                nonlocal count
                count += 1
                if count == 3:
                    raise UploadStorageError
                await write(parts)

            writer.write = fails  # type: ignore[method-assign]
            return writer

    service = UploadService(config(), database.store, Failing(faults.real))
    one = await attempt(service, ODD)
    with pytest.raises(UploadStorageError):
        await service.receive(one, Filling(bytes(ODD)))
    assert (await service.get(ME, one.session.upload_id)).state is State.FAILED
    assert [key async for key in faults.list_orphans(-60)] == []
    await three_at_once(UploadService(config(), database.store, faults))


async def three_at_once(service: UploadService) -> None:
    """Store three bodies at once: two fill slabs, and the third comes in chunks."""
    bodies = [Filling(os.urandom(RING_BYTES)) for _ in range(3)]
    data = [bytes(body._data) for body in bodies]
    attempts = [await attempt(service, RING_BYTES) for _ in bodies]
    stored = await asyncio.gather(*map(service.receive, attempts, bodies))
    assert [one.sha256 for one in stored] == list(map(sha256, data))
    assert sorted(body.fills for body in bodies) == [False, True, True]


async def test_a_body_that_is_cancelled_leaves_its_slabs_to_the_next(
    service: UploadService,
) -> None:
    class Stuck(Filling):
        async def fill(self, buffer: memoryview) -> None:
            if self.buffers:
                stuck.set()
                await asyncio.Event().wait()
            await super().fill(buffer)

    for _ in range(3):
        stuck = asyncio.Event()
        one = await attempt(service, ODD)
        task = asyncio.create_task(service.receive(one, Stuck(bytes(ODD))))
        async with asyncio.timeout(30):
            await stuck.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert (await service.get(ME, one.session.upload_id)).state is State.FAILED
    await three_at_once(service)


async def test_a_body_that_is_cancelled_twice_leaves_its_slabs_once_nothing_works_on_them(
    database: Database, faults: BlobFaults
) -> None:
    writing, go_on = asyncio.Event(), asyncio.Event()

    class Slow(BlobFaults):
        async def begin(self, key: str, size_bytes: int) -> BlobWriter:
            writer = await super().begin(key, size_bytes)

            async def write(parts: Parts, also: object = None) -> None:
                writing.set()
                await go_on.wait()

            writer.write = write  # type: ignore[method-assign]
            return writer

    slow = UploadService(config(), database.store, Slow(faults.real))
    for _ in range(3):
        writing.clear()
        go_on.clear()
        one = await attempt(slow, ODD)
        task = asyncio.create_task(slow.receive(one, Filling(bytes(ODD))))
        async with asyncio.timeout(30):
            await writing.wait()
            for _ in range(2):
                task.cancel()
                await asyncio.wait([task], timeout=0.05)
            assert not task.done()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
    assert slow._core.slabs._in_use == 0


def test_rings_are_few_and_one_is_kept() -> None:
    slabs = Slabs()
    first, second = slabs.take(), slabs.take()
    assert first is not None
    assert second is not None
    assert [len(slab) for slab in first] == [SLAB_BYTES] * RING_SLABS
    assert slabs.take() is None
    slabs.give(second)
    assert slabs.take() is second
