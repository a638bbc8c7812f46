"""From the claimed attempt to the stored file: stream, verify, record, publish, commit."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable

import anyio
from anyio.to_thread import run_sync

from agent_sandbox.bytestream import Sha256
from agent_sandbox.errors import (
    AgentSandboxError,
    UploadBodyError,
    UploadBodyTimeoutError,
    UploadBusyError,
    UploadError,
    UploadFailedError,
    UploadOutcomeUnknownError,
    UploadRevokedError,
    UploadSizeError,
    UploadStorageError,
)
from agent_sandbox.uploads.blobs import BlobWriter
from agent_sandbox.uploads.core import Core, raise_ended, stored_upload
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.models import Attempt, StoredUpload, UploadSession
from agent_sandbox.uploads.states import State

_log = logging.getLogger(__name__)

GATHERED_BYTES = 24 << 20
"""What all bodies together may have gathered: few get large batches, many get small ones."""

_BATCH_BYTES = (64 << 10, 1 << 20)
"""Smallest and largest batch of one body."""

_APART_BYTES = 512 << 10
"""From this size on a batch is hashed in one thread and written in another. Smaller ones come
where many bodies share the cores, and there a second trip to a thread only costs."""

_SETTLE_TRIES = 3


async def receive(
    core: Core, attempt: Attempt, chunks: AsyncIterable[bytes], *, hashed: bool = True
) -> StoredUpload:
    """Receive the body of a claimed attempt; see `UploadService.receive`."""
    key = attempt.session.object_key or ""
    writer: BlobWriter | None = None
    try:
        writer = await core.blobs.begin(key, attempt.session.size_bytes)
        with anyio.move_on_after(attempt.deadline_s) as deadline:
            count, sha256 = await _pump(core, attempt.session, writer, chunks, hashed)
        if deadline.cancelled_caught:
            raise UploadBodyTimeoutError
        _check(attempt.session, count, sha256)
        try:
            recorded = await core.store.record_received(
                attempt.session.upload_id, attempt=attempt.token, size_bytes=count, sha256=sha256
            )
        except UploadBusyError:  # which says to send again, but the attempt is used
            raise UploadStorageError from None
    except BaseException as error:
        await to_its_end(_fail(core, attempt, writer, error))
        raise
    # From here on the file may exist: nothing is cut short, and every wait below is bounded.
    try:
        return await to_its_end(_publish(core, attempt, writer, recorded))
    except UploadBusyError:  # as above
        raise UploadOutcomeUnknownError(str(State.RECEIVING)) from None


def _check(session: UploadSession, count: int, sha256: str) -> None:
    if session.kind == "upload" and count != session.size_bytes:
        raise UploadBodyError
    if session.sha256 is not None and sha256 != session.sha256:
        raise UploadBodyError


async def _pump(
    core: Core,
    session: UploadSession,
    writer: BlobWriter,
    chunks: AsyncIterable[bytes],
    hashed: bool,
) -> tuple[int, str]:
    """Count, hash and write; while one batch is on its way the next is gathered."""
    digest = Sha256()
    count = gathered = 0
    batch: list[bytes] = []
    under_way: asyncio.Task[None] | None = None

    def hashing(parts: list[bytes]) -> None:
        for part in parts:
            digest.update(part)

    async def store(parts: list[bytes], size: int) -> None:
        if not hashed:
            await writer.write(parts)
        elif size < _APART_BYTES:
            await writer.write(parts, lambda: hashing(parts))
        else:
            apart = asyncio.create_task(run_sync(hashing, parts))
            try:
                await writer.write(parts)
            finally:
                await asyncio.wait([apart])
            apart.result()

    async def stored() -> None:
        if under_way is not None:
            await asyncio.wait([under_way])  # unlike await, cancels nothing
            under_way.result()

    try:
        with core.receiving.entered() as active:
            async for chunk in chunks:
                count += len(chunk)
                if count > session.size_bytes:
                    if session.kind == "download":
                        raise UploadSizeError(session.size_bytes)
                    raise UploadBodyError
                batch.append(bytes(chunk))
                gathered += len(chunk)
                least, most = _BATCH_BYTES
                if gathered >= min(most, max(least, GATHERED_BYTES // (2 * active.count))):
                    await stored()
                    under_way = asyncio.create_task(store(batch, gathered))
                    batch, gathered = [], 0
            await stored()
            if batch:
                under_way = asyncio.create_task(store(batch, gathered))
                await stored()
    finally:
        core.audit.moved("in", count)
        if under_way is not None:
            # A thread cannot be stopped; the file must not be dropped under its hands.
            await to_its_end(_settled(under_way))
    return count, digest.hexdigest()


async def _settled(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # looked at: the first error is the one that is raised


async def _fail(
    core: Core, attempt: Attempt, writer: BlobWriter | None, error: BaseException
) -> None:
    """End the attempt: no bytes, no way back. What fails here, recovery does later."""
    code = error.code if isinstance(error, AgentSandboxError) else UploadFailedError.code
    if writer is not None:
        await writer.abort()
    try:
        session = await core.store.finish_put(
            attempt.session.upload_id, attempt=attempt.token, to=State.FAILED, reason=code
        )
    except UploadError as second:
        _log.warning("upload %s stays open (%s)", attempt.session.upload_id, second.code)
        return
    if session is not None:
        core.tell(session, "receive", code)
        await core.drop_blob(session)


async def _publish(
    core: Core, attempt: Attempt, writer: BlobWriter, recorded: UploadSession | None
) -> StoredUpload:
    if recorded is None:  # recovery called the attempt abandoned
        await writer.abort()
        raise_ended(await core.reread(attempt.session.upload_id))
    if recorded.revoke_requested:
        await writer.abort()
        return await _commit(core, attempt)
    try:
        await writer.commit()
    except UploadOutcomeUnknownError:
        found = await core.reconcile(recorded)
        if found.state is State.STORED:
            return stored_upload(found)
        raise_ended(found)
    except UploadError as error:
        await _fail(core, attempt, writer, error)
        raise
    return await _commit(core, attempt)


async def _commit(core: Core, attempt: Attempt) -> StoredUpload:
    """Move to stored, whatever became of the database's connection meanwhile."""
    upload_id = attempt.session.upload_id
    for turn in range(_SETTLE_TRIES):
        try:
            session = await core.store.finish_put(upload_id, attempt=attempt.token, to=State.STORED)
            if session is not None:
                core.tell(session, "receive")
            else:
                session = await core.reread(upload_id)
        except (UploadBusyError, UploadOutcomeUnknownError):
            await anyio.sleep(0.1 * 2**turn)
            continue
        if session.state is State.REVOKED:
            await core.drop_blob(session)
            raise UploadRevokedError
        if session.state in (State.STORED, State.PLACING, State.PLACED):
            return stored_upload(session)  # the row holds one attempt ever, and it is ours
        # Recovery gave up on this attempt first: what was published now belongs to nobody.
        await core.drop_blob(attempt.session)
        raise_ended(session)
    raise UploadOutcomeUnknownError(str(State.RECEIVING))
