"""`check_transfer`: which ways are open from where the agent is, found out with an empty probe."""

from __future__ import annotations

import contextlib
from urllib.parse import urlsplit

from agent_sandbox.errors import (
    UploadError,
    UploadNotFoundError,
    UploadQuotaError,
    UploadRateError,
)
from agent_sandbox.limits import MAX_FILE_BYTES
from agent_sandbox.toolkit import schemas as shared
from agent_sandbox.toolkit.arguments import NoArguments
from agent_sandbox.uploads import guidance
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.tools import schemas
from agent_sandbox.uploads.tools.backend import Backend, Call
from agent_sandbox.uploads.tools.schemas import Fields, when
from agent_sandbox.uploads.tools.tool import UploadTool, make_tool

_SETTLE_S = 5.0

_ARRIVED = frozenset({State.STORED, State.PLACING, State.PLACED})


async def check_transfer(call: Call, _arguments: NoArguments) -> Fields:
    """Tell the limits and what became of the last probe; open a new one unless it arrived."""
    config = call.service.config
    put = await _last_probe(call)
    fields: Fields = {
        "host": urlsplit(config.public_url).netloc,
        "put": put,
        "max_size_bytes": config.max_size_bytes,
    }
    if call.files is not None:
        fields["inline_limit_bytes"] = MAX_FILE_BYTES
    if put == "arrived":
        fields["instructions"] = call.backend.named(guidance.PUT_WORKS)
        return fields
    try:
        session, secret = await call.service.create_probe(call.principal)
    except (UploadQuotaError, UploadRateError):
        fields["instructions"] = call.backend.named(guidance.NO_PROBE)
        return fields
    url = config.url("upload", session.upload_id)
    fields["probe"] = {
        "upload_id": session.upload_id,
        "url": url,
        "method": "PUT",
        "headers": {"Authorization": secret},
        "put_by": when(session.put_by_unix_ms),
    }
    fields["instructions"] = call.backend.named(
        guidance.probe_instructions(url, fields["host"], failed=put != "not_tried")
    )
    return fields


async def _last_probe(call: Call) -> str:
    """Say what became of the probe, and end it: it would count against the quota."""
    session = await call.service.last_probe(call.principal)
    if session is None or session.state is State.REVOKED:  # never one, or told already
        return "not_tried"
    try:
        if session.state is State.RECEIVING:
            session = await call.service.get(call.principal, session.upload_id, _SETTLE_S)
        with contextlib.suppress(UploadError):  # it expires by itself
            await call.service.revoke(call.principal, session.upload_id)
    except UploadNotFoundError:  # swept
        return "not_arrived"
    if session.state in _ARRIVED:
        return "arrived"
    return "failed" if session.state is State.FAILED else "not_arrived"


def tools(backend: Backend) -> list[UploadTool]:
    """Return the tool of this file."""
    return [
        make_tool(
            backend,
            check_transfer,
            NoArguments,
            title="Check the ways to move files",
            description=guidance.CHECK_TRANSFER,
            input_schema=shared.closed_input({}),
            output_schema=schemas.output(
                {
                    "host": shared.text("The host and port that a PUT must be able to reach."),
                    "put": {
                        "type": "string",
                        "enum": ["not_tried", "arrived", "not_arrived", "failed"],
                        "description": "What became of the PUT of the last probe.",
                    },
                    "max_size_bytes": schemas.SIZE,
                    "inline_limit_bytes": schemas.SIZE,
                    "probe": {
                        "type": "object",
                        "properties": {
                            "upload_id": schemas.UPLOAD_ID,
                            "url": schemas.URL,
                            "method": {"const": "PUT"},
                            "headers": schemas.HEADERS,
                            "put_by": schemas.TIME,
                        },
                        "required": ["upload_id", "url", "method", "headers", "put_by"],
                        "additionalProperties": False,
                        "description": "An empty session to try a PUT on.",
                    },
                    "instructions": schemas.INSTRUCTIONS,
                },
                optional=("inline_limit_bytes", "probe"),
            ),
        )
    ]
