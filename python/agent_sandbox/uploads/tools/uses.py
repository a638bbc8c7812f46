"""The one use of an upload: written into a sandbox, or whatever the embedder does with a file."""

from __future__ import annotations

from typing import Any

from agent_sandbox.paths import canonical_path
from agent_sandbox.toolkit import schemas as shared
from agent_sandbox.uploads import guidance
from agent_sandbox.uploads.models import Placed
from agent_sandbox.uploads.tools import schemas
from agent_sandbox.uploads.tools.backend import Backend, Call
from agent_sandbox.uploads.tools.schemas import Fields, SandboxId, UploadIdArguments
from agent_sandbox.uploads.tools.tool import UploadTool, make_tool

_OWN_FIELDS = ("bytes_written", "sha256", *schemas.SANDBOX_FIELDS)

_USE_UPLOAD = (
    "Use a stored upload, by its id alone. Safe to repeat: a repeat returns the recorded result"
    " with `replayed: true` and does nothing. This is also the right call after a lost PUT answer."
)


class PlaceArguments(UploadIdArguments):
    """Arguments of `place_upload` where files have a path."""

    path: str
    sandbox_id: SandboxId | None = None


async def place_upload(call: Call, arguments: PlaceArguments) -> Fields:
    """Write a stored file to a path of a sandbox, once."""
    path = canonical_path(arguments.path)
    placed = await call.service.place(
        call.principal, arguments.upload_id, call.placer(), path, arguments.sandbox_id
    )
    result = dict(placed.result)
    if placed.replayed:
        for name in schemas.SANDBOX_OPTIONAL:  # they say what that call did, not this one
            result.pop(name, None)
    return {
        **_about(placed),
        "path": placed.target.path,
        **{name: result[name] for name in _OWN_FIELDS if name in result},
    }


async def use_upload(call: Call, arguments: UploadIdArguments) -> Fields:
    """Let the embedder use a stored file, once."""
    placed = await call.service.place(call.principal, arguments.upload_id, call.placer())
    return {
        **_about(placed),
        "filename": placed.upload.filename,
        "size_bytes": placed.upload.size_bytes,
        "sha256": placed.upload.sha256,
        "result": dict(placed.result),
    }


def _about(placed: Placed) -> dict[str, Any]:
    return {"upload_id": placed.upload.upload_id, "state": "placed", "replayed": placed.replayed}


_RESULT: dict[str, shared.Schema] = {
    "upload_id": schemas.UPLOAD_ID,
    "state": {"const": "placed"},
    "replayed": {
        "type": "boolean",
        "description": "True where an earlier call did it and nothing was done now.",
    },
}


def tools(backend: Backend) -> list[UploadTool]:
    """Return the tool that uses a file, if there is a use."""
    if backend.placer is not None:
        return [
            make_tool(
                backend,
                use_upload,
                UploadIdArguments,
                name=backend.use_tool,
                title="Use an upload",
                description=backend.use_description or _USE_UPLOAD,
                input_schema=shared.closed_input(
                    {"upload_id": schemas.UPLOAD_ID_IN}, required=("upload_id",)
                ),
                output_schema=schemas.output(
                    {
                        **_RESULT,
                        "filename": shared.text("The display name."),
                        "size_bytes": schemas.SIZE,
                        "sha256": shared.SHA256,
                        "result": {"type": "object", "description": "What came of it."},
                    }
                ),
                destructive=True,
                idempotent=True,
            )
        ]
    if backend.files is None:
        return []
    return [
        make_tool(
            backend,
            place_upload,
            PlaceArguments,
            name=backend.use_tool,
            title="Place an upload in a sandbox",
            description=backend.use_description or guidance.PLACE_UPLOAD,
            input_schema=shared.closed_input(
                {
                    "upload_id": schemas.UPLOAD_ID_IN,
                    "path": shared.file_path("The file to write in the sandbox."),
                    "sandbox_id": shared.sandbox_choice(guidance.ENDS_WITH_SCOPE),
                },
                required=("upload_id", "path"),
            ),
            output_schema=schemas.output(
                {
                    **_RESULT,
                    "path": shared.text("Where it really is: of the first call, in a replay too."),
                    "bytes_written": schemas.SIZE,
                    "sha256": shared.SHA256,
                    **schemas.SANDBOX_FIELDS,
                },
                optional=schemas.SANDBOX_OPTIONAL,
            ),
            destructive=True,
            idempotent=True,
        )
    ]
