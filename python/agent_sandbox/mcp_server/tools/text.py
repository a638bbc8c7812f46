"""Text files in and out: `read_file` and `write_file`."""

from __future__ import annotations

from agent_sandbox import Sandbox
from agent_sandbox.bytestream import Sha256
from agent_sandbox.errors import (
    SizeLimitError,
    TextEncodingError,
    TransferTimeoutError,
    UploadTimeoutError,
)
from agent_sandbox.limits import MAX_FILE_BYTES
from agent_sandbox.mcp_server import schemas
from agent_sandbox.mcp_server.arguments import PathArguments, WriteArguments
from agent_sandbox.mcp_server.tool import Call, Fields, make_tool
from agent_sandbox.mcp_server.tools import _words
from agent_sandbox.models import WriteInfo
from agent_sandbox.paths import canonical_path


async def read_file(call: Call, arguments: PathArguments) -> Fields:
    """Read at most 1 MiB and decode it as strict UTF-8, byte order mark and all."""
    path = canonical_path(arguments.path)
    call.require_streaming()

    async def read(sandbox: Sandbox) -> bytes:
        return await sandbox.files.read_bytes(path, max_bytes=MAX_FILE_BYTES)

    data = await call.registry.use(call.use, arguments.sandbox_id, read, TransferTimeoutError)
    try:
        content = data.decode()
    except UnicodeDecodeError:
        raise TextEncodingError from None
    digest = Sha256()
    digest.update(data)
    return call.file_fields(content=content, bytes_read=len(data), sha256=digest.hexdigest())


async def write_file(call: Call, arguments: WriteArguments) -> Fields:
    """Encode as UTF-8, at most 1 MiB, and replace the file."""
    path = canonical_path(arguments.path)
    if len(arguments.content) > MAX_FILE_BYTES:
        raise SizeLimitError(MAX_FILE_BYTES)
    try:
        data = arguments.content.encode()
    except UnicodeEncodeError:
        raise TextEncodingError from None
    if len(data) > MAX_FILE_BYTES:
        raise SizeLimitError(MAX_FILE_BYTES)

    async def write(sandbox: Sandbox) -> WriteInfo:
        return await sandbox.files.write(path, data)

    info = await call.registry.use(call.use, arguments.sandbox_id, write, UploadTimeoutError)
    return call.file_fields(bytes_written=info.bytes_written, sha256=info.sha256)


TOOLS = (
    make_tool(
        read_file,
        PathArguments,
        title="Read a text file",
        description=(
            "Return the content of a UTF-8 text file in the sandbox, at most"
            f" {MAX_FILE_BYTES:,} bytes (1 MiB); a larger file is refused, never cut. Anything that"
            " is not strict UTF-8 is refused: use download_file for it."
            f" {_words.PATH_IN_SANDBOX} {_words.DEFAULT_SANDBOX} {_words.ADOPTS}"
        ),
        input_schema=schemas.closed_input(
            {
                "path": schemas.file_path("The file to read."),
                "sandbox_id": schemas.sandbox_choice(_words.ADOPTS),
            },
            required=("path",),
        ),
        output_schema=schemas.file_output(
            {
                "content": schemas.text("The text."),
                "bytes_read": schemas.BYTES,
                "sha256": schemas.SHA256,
            }
        ),
        idempotent=True,
        advice=_words.LARGER_FILES_OUT,
    ),
    make_tool(
        write_file,
        WriteArguments,
        title="Write a text file",
        description=(
            "Write text to a file in the sandbox as UTF-8, replacing what is there; missing"
            f" directories are created. At most {MAX_FILE_BYTES:,} bytes (1 MiB) encoded. For"
            " binary data use upload_file. After a timeout the file may have been written: look at"
            f" it before you retry. {_words.PATH_IN_SANDBOX} {_words.DEFAULT_SANDBOX}"
            f" {_words.ADOPTS}"
        ),
        input_schema=schemas.closed_input(
            {
                "path": schemas.file_path("The file to write."),
                "content": schemas.text("The text.", maxLength=MAX_FILE_BYTES),
                "sandbox_id": schemas.sandbox_choice(_words.ADOPTS),
            },
            required=("path", "content"),
        ),
        output_schema=schemas.file_output(
            {"bytes_written": schemas.BYTES, "sha256": schemas.SHA256}
        ),
        destructive=True,
        idempotent=True,
        advice=_words.LARGER_FILES_IN,
    ),
)
