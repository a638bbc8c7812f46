"""What happens to a session while its body is stored: cancelled, revoked, given up, or taken."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.to_thread import run_sync
from tests.support.upload_parts import ME, BlobFaults, Database, Sink, chunked, sha256

from agent_sandbox.errors import (
    UploadConflictError,
    UploadFailedError,
    UploadOutcomeUnknownError,
    UploadRevokedError,
)
from agent_sandbox.uploads.core import Signals
from agent_sandbox.uploads.models import Attempt
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State

DATA = b"sixteen bytes..."
LARGE = bytes(range(256)) * 8_192
WAIT_S = 60.0


async def attempt(service: UploadService, data: bytes = DATA) -> Attempt:
    session, secret = await service.create(ME, "a.bin", len(data), sha256(data))
    return await service.claim(await service.authorise(session.upload_id, session.endpoint, secret))


async def objects(faults: BlobFaults) -> list[str]:
    return [key async for key in faults.list_orphans(-60)]


def with_writer(faults: BlobFaults, change: Callable[[Any], None]) -> None:
    """Change every writer of a store before it is used."""
    real = faults.begin

    async def begin(key: str, size_bytes: int) -> Any:
        writer = await real(key, size_bytes)
        change(writer)
        return writer

    faults.begin = begin  # type: ignore[method-assign]  # that is the fault


def before_the_commit(faults: BlobFaults, meanwhile: Callable[[], Awaitable[object]]) -> None:
    """Let something happen once the digest is recorded and before the file is published."""

    def change(writer: Any) -> None:
        real = writer.commit

        async def commit() -> None:
            await meanwhile()
            await real()

        writer.commit = commit

    with_writer(faults, change)


async def test_a_cancelled_body_is_dropped_only_after_the_thread_that_writes_it(
    service: UploadService, faults: BlobFaults
) -> None:
    writing, go = anyio.Event(), threading.Event()
    done: list[str] = []

    def change(writer: Any) -> None:
        write, abort = writer.write, writer.abort

        async def slow(parts: Any, also: Any = None) -> None:
            writing.set()
            await run_sync(go.wait, WAIT_S)
            await write(parts, also)
            done.append("written")

        async def dropped() -> None:
            done.append("dropped")
            await abort()

        writer.write, writer.abort = slow, dropped

    with_writer(faults, change)
    one = await attempt(service, LARGE)

    async def stalls() -> AsyncIterator[bytes]:
        yield LARGE[:-1]
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(service.receive, one, stalls())
        await writing.wait()
        group.cancel_scope.cancel()
        go.set()
    assert done == ["written", "dropped"]
    assert await objects(faults) == []


async def test_a_file_of_an_attempt_that_recovery_gave_up_is_dropped_when_it_is_published(
    database: Database, service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service)

    async def given_up() -> None:
        await database.advance(121_000)
        assert await service.recover() == 1

    before_the_commit(faults, given_up)
    with pytest.raises(UploadFailedError):
        await service.receive(one, chunked(DATA))
    assert await objects(faults) == []
    assert (await service.get(ME, one.session.upload_id)).state is State.FAILED


async def test_a_file_that_is_revoked_while_it_is_published_is_dropped(
    service: UploadService, faults: BlobFaults
) -> None:
    one = await attempt(service)
    before_the_commit(faults, lambda: service.revoke(ME, one.session.upload_id))
    with pytest.raises(UploadRevokedError):
        await service.receive(one, chunked(DATA))
    assert await objects(faults) == []
    found = await service.get(ME, one.session.upload_id)
    assert (found.state, found.object_key) == (State.REVOKED, None)


async def test_a_server_that_uses_one_buffer_for_every_chunk_stores_what_it_said(
    service: UploadService,
) -> None:
    one = await attempt(service, LARGE)

    async def reused() -> AsyncIterator[bytes]:
        buffer = bytearray(65_536)
        for at in range(0, len(LARGE), len(buffer)):
            buffer[:] = LARGE[at : at + len(buffer)]
            yield buffer  # type: ignore[misc]  # not bytes: that is the fault
            buffer[:] = bytes(len(buffer))

    stored = await service.receive(one, reused())
    sink = Sink()
    await service.place(ME, stored.upload_id, sink, "/a")
    assert sink.written == {"/a": LARGE}


async def test_a_claim_without_an_answer_is_not_taken_for_that_of_another_request(
    database: Database, service: UploadService
) -> None:
    session, secret = await service.create(ME, "a", len(DATA))
    admitted = await service.authorise(session.upload_id, session.endpoint, secret)
    real = database.store.claim_put

    async def lost(*arguments: Any, **named: Any) -> object:
        assert await real(*arguments, **{**named, "attempt": "another"}) is not None
        raise UploadOutcomeUnknownError("unknown")

    database.store.claim_put = lost  # type: ignore[method-assign, assignment]  # the fault
    with pytest.raises(UploadConflictError):
        await service.claim(admitted)
    assert (await service.get(ME, session.upload_id)).attempt == "another"


async def test_who_waits_on_is_woken_when_another_has_stopped_to_wait() -> None:
    signals = Signals()
    woken = anyio.Event()

    async def patient() -> None:
        await signals.wait("id", WAIT_S)
        woken.set()

    async with anyio.create_task_group() as group:
        group.start_soon(patient)
        await anyio.wait_all_tasks_blocked()
        await signals.wait("id", 0.0)
        with anyio.fail_after(WAIT_S / 2):
            await woken.wait()
