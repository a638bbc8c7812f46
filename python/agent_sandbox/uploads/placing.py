"""The one use of a stored file, and its recorded result."""

from __future__ import annotations

import json
import time

import anyio

from agent_sandbox.errors import (
    BY_CODE,
    AgentSandboxError,
    TransferError,
    UploadBusyError,
    UploadError,
    UploadNotFoundError,
    UploadOutcomeUnknownError,
    UploadStorageError,
    UploadTimeoutError,
)
from agent_sandbox.uploads import secrets
from agent_sandbox.uploads.blobs import BlobReader
from agent_sandbox.uploads.core import POLL_S, Core, raise_ended, stored_upload, verified
from agent_sandbox.uploads.endings import to_its_end
from agent_sandbox.uploads.models import (
    Charge,
    Placed,
    Placer,
    PlaceTarget,
    Principal,
    UploadSession,
)
from agent_sandbox.uploads.states import Answer, Event, Phase, State, answer

_UNKNOWN = (UploadTimeoutError, UploadOutcomeUnknownError)


async def place(
    core: Core,
    principal: Principal,
    session: UploadSession,
    placer: Placer,
    target: PlaceTarget,
    charge: Charge | None,
) -> Placed:
    """Use the caller's file once; see `UploadService.place`."""
    if session.kind != "upload":
        raise UploadNotFoundError
    end = time.monotonic() + core.config.place_lease_s + core.config.place_timeout_s
    joined: str | None = None
    while time.monotonic() < end:
        match answer(session.state, Event.PLACE, session.place_phase):
            case Answer.REPLAY:
                return _placed(session, replayed=True)
            case Answer.JOIN:
                joined = session.place_attempt
                await core.signals.wait(session.upload_id, POLL_S)
                session = await core.reread(session.upload_id)
            case Answer.CLAIM if joined is not None and joined == session.place_attempt:
                # The attempt that this call joined has failed: both get the same result.
                raise _recorded_error(session.reason)
            case Answer.CLAIM:
                claimed = await _claim(core, session, target)
                if claimed is not None:
                    return await _use(core, principal, claimed, placer, target, charge)
                session = await core.reread(session.upload_id)
            case Answer.RECONCILE if session.state is State.PLACING:
                claimed = await _inspected(core, session, placer, target)
                if claimed is not None:
                    return await _use(core, principal, claimed, placer, target, charge)
                session = await core.reread(session.upload_id)
            case Answer.RECONCILE:
                session = await core.reconcile(session)
                if session.state is State.UNKNOWN:
                    raise_ended(session)
            case _:
                raise_ended(session)
    raise UploadOutcomeUnknownError(str(session.state))


async def _claim(
    core: Core, session: UploadSession, target: PlaceTarget, after: str | None = None
) -> UploadSession | None:
    token = secrets.new_id()
    written = json.dumps({"path": target.path, "sandbox_id": target.sandbox_id})
    try:
        claimed = await core.store.claim_place(
            session.upload_id,
            attempt=token,
            target=written,
            lease_ms=round(core.config.place_lease_s * 1_000),
            after=after,
        )
    except UploadOutcomeUnknownError:
        # The commit's answer was lost: the token in the row says whose attempt it is.
        found = await core.reread(session.upload_id)
        claimed = found if found.place_attempt == token else None
    if claimed is not None:
        core.tell(claimed, "place")
    return claimed


async def _inspected(
    core: Core, session: UploadSession, placer: Placer, target: PlaceTarget
) -> UploadSession | None:
    """Settle an attempt of unknown outcome; return the next attempt if it did nothing."""
    try:
        with anyio.fail_after(core.config.place_timeout_s):
            result = await placer.inspect(stored_upload(session), _target(session))
    except (AgentSandboxError, TimeoutError):
        raise UploadOutcomeUnknownError(str(session.state)) from None
    if result is None:
        return await _claim(core, session, target, after=session.place_attempt)
    done = await core.store.settle_place(
        session.upload_id,
        attempt=session.place_attempt or "",
        phase=Phase.DONE,
        result=json.dumps(dict(result)),
    )
    if done is not None:
        core.tell(done, "reconcile")
        await core.drop_blob(done)
    return None


async def _use(
    core: Core,
    principal: Principal,
    session: UploadSession,
    placer: Placer,
    target: PlaceTarget,
    charge: Charge | None,
) -> Placed:
    upload = stored_upload(session)
    phase, begun = Phase.CLOSED, False
    try:
        with anyio.move_on_after(core.config.place_timeout_s) as deadline:
            reader = await _opened(core, session)  # nobody pays for a file that is not there
            data = verified(reader, session)
            try:
                if charge is not None:
                    await charge(upload, principal)
                begun = True
                result = json.dumps(dict(await placer.place(upload, data, target)))
            except UploadStorageError:
                raise UploadBusyError from None  # as in `_opened`
            finally:
                with anyio.CancelScope(shield=True):
                    await data.aclose()
                    await reader.aclose()  # a generator that never began closes nothing
        if deadline.cancelled_caught:
            raise UploadOutcomeUnknownError(str(State.PLACING))
    except BaseException as error:
        definite = isinstance(error, AgentSandboxError) and not isinstance(error, _UNKNOWN)
        if begun and not definite:
            phase = Phase.UNKNOWN
        await to_its_end(_end(core, session, phase, error))
        if isinstance(error, UploadTimeoutError):
            raise UploadOutcomeUnknownError(str(State.PLACING)) from None
        raise
    return await to_its_end(_record(core, session, result))


async def _opened(core: Core, session: UploadSession) -> BlobReader:
    try:
        reader = await core.blobs.open(session.object_key or "")
    except UploadStorageError:
        # Whose text says that nothing was kept; but the bytes are, and the next call may work.
        raise UploadBusyError from None
    if reader is None:
        raise UploadStorageError
    return reader


async def _end(core: Core, session: UploadSession, phase: Phase, error: BaseException) -> None:
    code = error.code if isinstance(error, AgentSandboxError) else UploadError.code
    try:
        ended = await core.store.settle_place(
            session.upload_id, attempt=session.place_attempt or "", phase=phase, reason=code
        )
    except UploadError:
        return  # the lease runs out, and the attempt reads as unknown
    if ended is not None:
        core.tell(ended, "place", code)


async def _record(core: Core, session: UploadSession, result: str) -> Placed:
    """Record what was done; a lost answer is settled by reading the row again."""
    token = session.place_attempt or ""
    for turn in range(3):
        try:
            done = await core.store.settle_place(
                session.upload_id, attempt=token, phase=Phase.DONE, result=result
            )
            if done is not None:
                core.tell(done, "place")
            else:
                done = await core.reread(session.upload_id)
        except UploadError:
            await anyio.sleep(0.1 * 2**turn)
            continue
        if done.state is State.PLACED:
            core.audit.moved("out", done.received_bytes or 0)
            await core.drop_blob(done)
            return _placed(done, replayed=done.place_attempt != token)
        break
    raise UploadOutcomeUnknownError(str(State.PLACING))


def _target(session: UploadSession) -> PlaceTarget:
    return PlaceTarget(**json.loads(session.place_target or "{}"))


def _placed(session: UploadSession, *, replayed: bool) -> Placed:
    return Placed(
        upload=stored_upload(session),
        target=_target(session),
        result=json.loads(session.place_result or "{}"),
        replayed=replayed,
    )


def _recorded_error(code: str | None) -> AgentSandboxError:
    try:
        return BY_CODE[code or ""]()
    except (KeyError, TypeError):  # unknown here, or with details that the row does not hold
        return TransferError()
