"""JSON schemas of the sandbox tools, from the parts that all tools share."""

from __future__ import annotations

from collections.abc import Sequence

from agent_sandbox.limits import MAX_FILE_BYTES, MAX_TTL_S
from agent_sandbox.toolkit.schemas import (
    CREATED,
    FAILURE,
    NEXT_STEP,
    SANDBOX_ID_IN,
    SANDBOX_ID_OUT,
    SHA256,
    SHA256_PATTERN,
    Schema,
    closed_input,
    file_path,
    output,
    sandbox_choice,
    text,
)

__all__ = [
    "BYTES",
    "CREATED",
    "FAILURE",
    "NEXT_STEP",
    "SANDBOX_ID_IN",
    "SANDBOX_ID_OUT",
    "SHA256",
    "SHA256_PATTERN",
    "TTL_IN",
    "Schema",
    "closed_input",
    "failure_with",
    "file_output",
    "file_path",
    "output",
    "sandbox_choice",
    "text",
]

TTL_IN: Schema = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAX_TTL_S,
    "description": "Seconds after its last use at which the sandbox ends.",
}

BYTES: Schema = {"type": "integer", "minimum": 0, "maximum": MAX_FILE_BYTES}


def file_output(
    properties: dict[str, Schema], optional: Sequence[str] = (), failure: Schema = FAILURE
) -> Schema:
    """Return the output schema of a tool that used a sandbox's files or ran something in it."""
    return output(
        {
            **properties,
            "sandbox_id": SANDBOX_ID_OUT,
            "sandbox_created": CREATED,
            "next_step": NEXT_STEP,
        },
        optional=(*optional, "sandbox_created", "next_step"),
        failure=failure,
    )


def failure_with(properties: dict[str, Schema]) -> Schema:
    """Return the schema of a failure that may also tell these."""
    return {**FAILURE, "properties": {**FAILURE["properties"], **properties}}
