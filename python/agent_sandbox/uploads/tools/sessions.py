"""The sessions themselves: open one, look at it, end it. None of these touches a sandbox."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from agent_sandbox.errors import BY_CODE, UploadNotFoundError
from agent_sandbox.toolkit import schemas as shared
from agent_sandbox.toolkit.arguments import Arguments
from agent_sandbox.uploads import guidance
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.tools import schemas
from agent_sandbox.uploads.tools.backend import Backend, Call
from agent_sandbox.uploads.tools.schemas import Fields, UploadIdArguments, when
from agent_sandbox.uploads.tools.tool import UploadTool, make_tool


class CreateArguments(Arguments):
    """Arguments of `create_upload_url`; the service judges the name and the largest size."""

    filename: str
    size_bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-fA-F]{64}$")] | None = None


class GetArguments(UploadIdArguments):
    """Arguments of `get_upload`."""

    wait_seconds: Annotated[int, Field(ge=0, le=schemas.LONGEST_WAIT_S)] = 0


async def create_upload_url(call: Call, arguments: CreateArguments) -> Fields:
    """Open a session and hand out its secret, this once."""
    session, secret = await call.service.create(
        call.principal, arguments.filename, arguments.size_bytes, arguments.sha256
    )
    url = call.service.config.url("upload", session.upload_id)
    return {
        "upload_id": session.upload_id,
        "url": url,
        "method": "PUT",
        "headers": {"Authorization": secret},
        "put_by": when(session.put_by_unix_ms),
        "use_by": when(session.use_by_unix_ms),
        "instructions": call.backend.named(guidance.upload_instructions(url)),
    }


async def get_upload(call: Call, arguments: GetArguments) -> Fields:
    """Say where a session stands; with a wait, once it has left pending and receiving."""
    session = await call.service.get(call.principal, arguments.upload_id, arguments.wait_seconds)
    if session.kind != "upload":  # what its size, times and next step mean is another thing
        raise UploadNotFoundError
    return _about(call, session)


async def revoke_upload(call: Call, arguments: UploadIdArguments) -> Fields:
    """End a session."""
    session = await call.service.revoke(call.principal, arguments.upload_id)
    return {"upload_id": session.upload_id, "state": str(session.state)}


def _about(call: Call, session: UploadSession) -> Fields:
    fields: Fields = {
        "upload_id": session.upload_id,
        "state": str(session.state),
        "filename": session.filename,
        "size_bytes": session.size_bytes,
        "put_by": when(session.put_by_unix_ms),
        "use_by": when(session.use_by_unix_ms),
        "next_step": call.backend.named(_NEXT[session.state]),
    }
    if session.received_sha256 is not None and session.state not in (State.FAILED, State.REVOKED):
        fields["sha256"] = session.received_sha256
    if session.state is State.FAILED and session.reason in BY_CODE:
        fields["reason"] = BY_CODE[session.reason].text
    return fields


_NEXT: dict[State, str] = {
    State.PENDING: guidance.NEXT_STEP["E7001"],
    State.RECEIVING: "Wait for the bytes: call get_upload with wait_seconds. Do not PUT again.",
    State.STORED: "Call place_upload with this upload_id before use_by.",
    State.PLACING: "Call place_upload with this upload_id to get the result.",
    State.PLACED: "Done. place_upload with this upload_id returns the recorded result.",
    State.FAILED: guidance.NEXT_STEP["E7006"],
    State.EXPIRED: guidance.NEXT_STEP["E7004"],
    State.REVOKED: guidance.NEXT_STEP["E7005"],
    State.UNKNOWN: guidance.LOST_ANSWER,
}


def tools(backend: Backend) -> list[UploadTool]:
    """Return the tools of this file."""
    about = {
        "upload_id": schemas.UPLOAD_ID,
        "state": schemas.STATE,
        "filename": shared.text("The display name."),
        "size_bytes": schemas.SIZE,
        "sha256": shared.SHA256,
        "put_by": schemas.TIME,
        "use_by": schemas.TIME,
        "reason": shared.text("Why the one attempt failed."),
        "next_step": schemas.NEXT_STEP,
    }
    return [
        make_tool(
            backend,
            create_upload_url,
            CreateArguments,
            title="Open an upload session",
            description=guidance.CREATE_UPLOAD_URL,
            input_schema=shared.closed_input(
                {
                    "filename": shared.text(
                        "A plain name for display, without a path: it decides nothing about where"
                        " the file goes."
                    ),
                    "size_bytes": {
                        "type": "integer",
                        "minimum": 0,
                        "description": "The exact size of the file (stat -c %s FILE).",
                    },
                    "sha256": shared.text(
                        "Optional: the hex sha256 of the file (sha256sum FILE); verified.",
                        pattern="^[0-9a-fA-F]{64}$",
                    ),
                },
                required=("filename", "size_bytes"),
            ),
            output_schema=schemas.output(
                {
                    "upload_id": schemas.UPLOAD_ID,
                    "url": schemas.URL,
                    "method": {"const": "PUT"},
                    "headers": schemas.HEADERS,
                    "put_by": schemas.TIME,
                    "use_by": schemas.TIME,
                    "instructions": schemas.INSTRUCTIONS,
                }
            ),
        ),
        make_tool(
            backend,
            get_upload,
            GetArguments,
            title="Look at an upload session",
            description=guidance.GET_UPLOAD,
            input_schema=shared.closed_input(
                {
                    "upload_id": schemas.UPLOAD_ID_IN,
                    "wait_seconds": {
                        "type": "integer",
                        "minimum": 0,
                        "maximum": schemas.LONGEST_WAIT_S,
                        "description": "Wait at most this long for the bytes to land.",
                    },
                },
                required=("upload_id",),
            ),
            output_schema=schemas.output(about, optional=("sha256", "reason")),
            read_only=True,
            idempotent=True,
        ),
        make_tool(
            backend,
            revoke_upload,
            UploadIdArguments,
            title="End an upload session",
            description=guidance.REVOKE_UPLOAD,
            input_schema=shared.closed_input(
                {"upload_id": schemas.UPLOAD_ID_IN}, required=("upload_id",)
            ),
            output_schema=schemas.output(
                {
                    "upload_id": schemas.UPLOAD_ID,
                    "state": {
                        **schemas.STATE,
                        "description": "`receiving`: it ends when the body that comes in is whole.",
                    },
                }
            ),
            destructive=True,
            idempotent=True,
        ),
    ]
