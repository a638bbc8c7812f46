"""What the inputs and outputs of these tools share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from agent_sandbox.toolkit import schemas
from agent_sandbox.toolkit.arguments import Arguments
from agent_sandbox.toolkit.schemas import Schema
from agent_sandbox.uploads.states import State

LONGEST_WAIT_S = 50
"""Longest standing wait of `get_upload`: some clients give up on a call after 60 seconds."""

FAILURE: Schema = {
    **schemas.FAILURE,
    "properties": {
        **schemas.FAILURE["properties"],
        "state": schemas.text("The state of the session, where the caller may know it."),
        "next_step": schemas.text("What to do now."),
        "allowed_extensions": {
            "type": "array",
            "items": {"type": "string"},
            "description": "What a filename may end in here.",
        },
        "retry_after_seconds": {
            "type": "integer",
            "minimum": 1,
            "description": "A call before this cannot succeed.",
        },
    },
}

UPLOAD_ID_IN: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 64,
    "description": "The upload_id of create_upload_url.",
}

UPLOAD_ID: Schema = {"type": "string", "description": "Names the session in later calls."}
STATE: Schema = {"type": "string", "enum": [str(state) for state in State]}
SIZE: Schema = {"type": "integer", "minimum": 0, "description": "Size in bytes."}
TIME: Schema = {"type": "string", "description": "A time in UTC (RFC 3339)."}
NEXT_STEP: Schema = schemas.text("What to do now.")
INSTRUCTIONS: Schema = schemas.text("Ready-to-run commands, and what to do when they fail.")

URL: Schema = schemas.text("Where to send the request. It gives no access by itself.")
HEADERS: Schema = {
    "type": "object",
    "properties": {"Authorization": schemas.text("The one-time secret: the whole value.")},
    "required": ["Authorization"],
    "additionalProperties": False,
    "description": "Temporary headers, to be sent exactly as given. Shown once.",
}

SANDBOX_FIELDS: dict[str, Schema] = {
    "sandbox_id": schemas.SANDBOX_ID_OUT,
    "sandbox_created": schemas.CREATED,
    "next_step": NEXT_STEP,
}
"""What the result of a tool that used a sandbox says about it."""

SANDBOX_OPTIONAL = ("sandbox_created", "next_step")


def output(properties: dict[str, Schema], optional: tuple[str, ...] = ()) -> Schema:
    """Return an output schema: this success, or the failure of these tools."""
    return schemas.output(properties, optional, FAILURE)


def when(unix_ms: int) -> str:
    """Return a time as results show it."""
    moment = datetime.fromtimestamp(unix_ms / 1_000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


class UploadIdArguments(Arguments):
    """Arguments of tools that take an id alone."""

    upload_id: Annotated[str, Field(min_length=1, max_length=64)]


SandboxId = Annotated[str, Field(min_length=1, max_length=256)]

Fields = dict[str, Any]
