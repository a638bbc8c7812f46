"""JSON schemas of tools, built by hand: closed inputs, outputs that are a success or a failure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_sandbox.errors import CATEGORIES

Schema = dict[str, Any]

SHA256_PATTERN = "^[0-9a-f]{64}$"

SHA256: Schema = {
    "type": "string",
    "pattern": SHA256_PATTERN,
    "description": "Lower-case hex sha256 of the bytes.",
}

SANDBOX_ID_IN: Schema = {
    "type": "string",
    "minLength": 1,
    "maxLength": 256,
    "description": "A sandbox's id.",
}

SANDBOX_ID_OUT: Schema = {"type": "string", "description": "The sandbox that was used."}

CREATED: Schema = {
    "const": True,
    "description": (
        "A new sandbox was made for this call, because there was none or the earlier one is gone:"
        " files of earlier calls are not in it."
    ),
}

NEXT_STEP: Schema = {
    "type": "string",
    "description": "Only where the connection has no session: what to do with the new sandbox.",
}

FAILURE: Schema = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "What went wrong and what to do next."},
        "error_category": {"type": "string", "enum": list(CATEGORIES)},
        "sandbox_id": SANDBOX_ID_OUT,
        "next_step": {"type": "string", "description": "What to do now, if that is known."},
    },
    "required": ["error", "error_category"],
    "additionalProperties": False,
}


def text(description: str, **rules: Any) -> Schema:
    """Return the schema of a string."""
    return {"type": "string", **rules, "description": description}


def file_path(description: str) -> Schema:
    """Return the schema of a remote path; its further rules stand in `agent_sandbox.paths`."""
    return text(
        f"{description} Absolute, at most 4096 UTF-8 bytes, no NUL, no '..' component.",
        pattern="^/",
    )


def sandbox_choice(effect: str) -> Schema:
    """Return the schema of an optional `sandbox_id`."""
    return {
        **SANDBOX_ID_IN,
        "description": f"The sandbox to use; leave it out for the default. {effect}",
    }


def closed_input(properties: dict[str, Schema], required: Sequence[str] = ()) -> Schema:
    """Return an input schema that allows these arguments and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def output(
    properties: dict[str, Schema], optional: Sequence[str] = (), failure: Schema = FAILURE
) -> Schema:
    """Return an output schema: an object that is this success or the failure of every tool.

    The official TypeScript client checks error results against it too, so both are in it.
    """
    success: Schema = {
        "type": "object",
        "properties": {"success": {"const": True}, **properties},
        "required": ["success", *(name for name in properties if name not in optional)],
        "additionalProperties": False,
    }
    return {"type": "object", "oneOf": [success, failure]}
