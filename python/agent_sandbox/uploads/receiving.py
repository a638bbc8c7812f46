"""From the claimed attempt to the stored file: stream, verify, record, publish, commit."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterable

import anyio

from agent_sandbox.errors import (
    AgentSandboxError,
    UploadBodyError,
    UploadBodyTimeoutError,
    UploadBusyError,
    UploadError,
    UploadFailedError,
    UploadOutcomeUnknownError,
    UploadRevokedError,
    UploadStorageError,
)
from agent_sandbox.uploads.blobs import BlobWriter
from agent_sandbox.uploads.core import Core, raise_ended, stored_upload
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.models import Attempt, StoredUpload, UploadSession
from agent_sandbox.uploads.pumping import pump
from agent_sandbox.uploads.states import State

_log = logging.getLogger(__name__)

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
            count, sha256 = await pump(core, attempt.session, writer, chunks, hashed=hashed)
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
