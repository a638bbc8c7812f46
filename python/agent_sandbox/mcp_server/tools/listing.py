"""Directories: `list_files`."""

from __future__ import annotations

from typing import Any

from agent_sandbox import Sandbox
from agent_sandbox.errors import TransferTimeoutError
from agent_sandbox.mcp_server import schemas
from agent_sandbox.mcp_server.arguments import PathArguments
from agent_sandbox.mcp_server.tool import Call, Fields, make_tool
from agent_sandbox.mcp_server.tools import _words
from agent_sandbox.models import FileInfo, FileType
from agent_sandbox.paths import canonical_path
from agent_sandbox.toolkit.results import to_json

MAX_LISTING_BYTES = 1_048_576
"""JSON size of the entries of one answer. They stand in it twice, and it must fit into a line."""


async def list_files(call: Call, arguments: PathArguments) -> Fields:
    """List one directory, by name, as far as an answer goes."""
    path = canonical_path(arguments.path, directory=True)

    async def list_directory(sandbox: Sandbox) -> list[FileInfo]:
        return list(await sandbox.files.list(path))

    found = await call.registry.use(
        call.use, arguments.sandbox_id, list_directory, TransferTimeoutError
    )
    entries = [_entry(info) for info in sorted(found, key=lambda info: info.name)]
    kept = fitting(entries)
    return call.file_fields(path=path, entries=kept, omitted_entries=len(entries) - len(kept))


def _entry(info: FileInfo) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": _sendable(info.name),
        "type": info.type.value,
        "size_bytes": info.size_bytes,
        "mode": f"{info.mode:04o}",
        "modified_at": info.modified_at.isoformat(),
    }
    if info.symlink_target is not None:
        entry["symlink_target"] = _sendable(info.symlink_target)
    return entry


def _sendable(name: str) -> str:
    # Names are bytes; what is not UTF-8 may come as lone surrogates, which no JSON text can hold.
    return name.encode("utf-8", "replace").decode()


def fitting(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first entries, as many as an answer holds."""
    size = 0
    for count, entry in enumerate(entries):
        size += len(to_json(entry).encode()) + 1
        if size > MAX_LISTING_BYTES:
            return entries[:count]
    return entries


TOOLS = (
    make_tool(
        list_files,
        PathArguments,
        title="List a directory",
        description=(
            "List the entries of one directory in the sandbox, sorted by name, without going"
            " deeper. Files have size_bytes; symbolic links show their target and are not"
            " followed. omitted_entries counts what did not fit into the answer: list a"
            f" subdirectory instead. {_words.PATH_IN_SANDBOX} {_words.DEFAULT_SANDBOX}"
            f" {_words.ADOPTS}"
        ),
        input_schema=schemas.closed_input(
            {
                "path": schemas.file_path("The directory to list."),
                "sandbox_id": schemas.sandbox_choice(_words.ADOPTS),
            },
            required=("path",),
        ),
        output_schema=schemas.file_output(
            {
                "path": schemas.text("The directory, in canonical form."),
                "entries": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"type": "string"},
                            "type": {"type": "string", "enum": [kind.value for kind in FileType]},
                            "size_bytes": {"type": "integer", "minimum": 0},
                            "mode": {"type": "string", "description": "Permission bits, octal."},
                            "modified_at": {"type": "string", "description": "ISO 8601, UTC."},
                            "symlink_target": {"type": "string"},
                        },
                        "required": ["name", "type", "size_bytes", "mode", "modified_at"],
                        "additionalProperties": False,
                    },
                },
                "omitted_entries": {"type": "integer", "minimum": 0},
            }
        ),
        idempotent=True,
    ),
)
