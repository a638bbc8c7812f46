"""The end of a session by its owner's will, or with its owner's credential."""

from __future__ import annotations

from agent_sandbox.errors import UploadOutcomeUnknownError, UploadPlacingError
from agent_sandbox.uploads.core import Core, raise_ended
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import Answer, Event, State, answer

_TRIES = 3
"""How often a call looks again when another one changed its row first."""


async def revoke(core: Core, session: UploadSession) -> UploadSession:
    """End the caller's session; see `UploadService.revoke`."""
    for _ in range(_TRIES):
        match answer(session.state, Event.REVOKE):
            case Answer.NO_OP:
                return session
            case Answer.CONFLICT:
                raise UploadPlacingError
            case Answer.RECONCILE:
                session = await core.reconcile(session)
                if session.state is State.UNKNOWN:
                    raise_ended(session)
                continue
        revoked = await core.store.revoke(session.upload_id)
        if revoked is not None:
            await _revoked(core, revoked)
            return revoked
        session = await core.reread(session.upload_id)
    raise UploadOutcomeUnknownError(str(session.state))


async def revoke_credential(core: Core, credential_id: str, workspace: str | None) -> int:
    """Kill the unused secrets of a credential; see `UploadService.revoke_principal`."""
    revoked = await core.store.revoke_credential(credential_id, workspace)
    for session in revoked:
        await _revoked(core, session)
    return len(revoked)


async def _revoked(core: Core, session: UploadSession) -> None:
    core.tell(session, "revoke")
    if session.state is State.REVOKED:
        await core.drop_blob(session)
