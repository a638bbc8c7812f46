"""Who may begin a transfer: the checks of a request, and the one attempt."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from agent_sandbox.errors import (
    DownloadUsedError,
    UploadBusyError,
    UploadConflictError,
    UploadInterruptedError,
    UploadNotFoundError,
    UploadOutcomeUnknownError,
    UploadSecretMissingError,
)
from agent_sandbox.uploads import secrets
from agent_sandbox.uploads.core import Core, raise_ended, stored_upload
from agent_sandbox.uploads.declarations import object_prefix
from agent_sandbox.uploads.models import Attempt, Kind, StoredUpload, UploadSession
from agent_sandbox.uploads.states import Answer, Event, State, answer

_ID = re.compile(r"[0-9a-f]{32}")


async def read(core: Core, upload_id: str) -> UploadSession | None:
    """Return a session; what cannot be an id never reaches a database."""
    # Which may refuse its very characters.
    if not isinstance(upload_id, str) or not _ID.fullmatch(upload_id):
        return None
    return await core.store.read(upload_id)


async def authorise(
    core: Core,
    upload_id: str,
    endpoint: str,
    secret: str | None,
    kind: Kind,
    stands: Callable[[UploadSession], Awaitable[None]],
) -> UploadSession:
    """Return the session that takes a transfer now; see `UploadService.authorise`.

    Args:
        core: The parts of the service.
        upload_id: From the URL.
        endpoint: Path of the request.
        secret: Value of the header.
        kind: Which way the bytes are to go.
        stands: Raises where the session's credential was removed; asked once the secret is right.
    """
    if not secret:
        raise UploadSecretMissingError
    session = await read(core, upload_id)
    # An unknown id costs the same work as a wrong secret.
    stored = session.secret_hmac if session else b"\0" * 32
    # The endpoint is in the proof: a secret is worth nothing at another one.
    proof = secrets.secret_hmac(core.config.server_key, upload_id, endpoint, secret)
    if not secrets.matches(stored, proof) or session is None or session.kind != kind:
        raise UploadNotFoundError
    await stands(session)
    admit(session)
    return session


def admit(session: UploadSession) -> None:
    """Raise unless the one attempt of the session, or its one GET, is still to be had."""
    if session.kind == "download":
        if session.state in (State.PLACING, State.PLACED):
            raise DownloadUsedError
        if session.state is not State.STORED:
            raise_ended(session)
    elif session.state in (State.EXPIRED, State.REVOKED):
        raise_ended(session)
    elif answer(session.state, Event.PUT) is not Answer.CLAIM:
        raise UploadConflictError(str(session.state))


async def claim(core: Core, session: UploadSession) -> Attempt:
    """Take the one attempt; see `UploadService.claim`."""
    token = secrets.new_id()
    limit_s = core.config.body_limit_s(session.size_bytes)
    key = f"{object_prefix(session.workspace)}/{secrets.new_id()}"
    try:
        claimed = await core.store.claim_put(
            session.upload_id, attempt=token, object_key=key, body_ms=round(limit_s * 1_000)
        )
    except UploadOutcomeUnknownError:
        # The commit's answer was lost: the token in the row says whose attempt it is.
        try:
            claimed = await core.reread(session.upload_id)
        except UploadBusyError:  # which would say that the attempt is not used
            raise UploadOutcomeUnknownError(str(State.PENDING)) from None
    if claimed is None or claimed.attempt != token:
        admit(claimed or await core.reread(session.upload_id))
        raise UploadOutcomeUnknownError(str(State.PENDING))
    core.tell(claimed, "claim")
    return Attempt(claimed, token, limit_s)


async def outcome(core: Core, session: UploadSession) -> StoredUpload:
    """Return the file of a session whose PUT was cancelled; see `UploadService.outcome`."""
    try:
        found = await core.reread(session.upload_id)
    except UploadBusyError:  # which would say that the attempt is not used
        raise UploadOutcomeUnknownError(str(session.state)) from None
    match found.state:
        case State.PENDING:
            raise UploadBusyError
        case State.FAILED:
            raise UploadInterruptedError
        case State.STORED | State.PLACING | State.PLACED:
            return stored_upload(found)
        case State.RECEIVING:
            raise UploadOutcomeUnknownError(str(found.state))
        case _:
            raise_ended(found)
