"""Binary files in and out: `upload_file` and `download_file`."""

from __future__ import annotations

from agent_sandbox import Sandbox
from agent_sandbox.bytestream import Sha256, b64decode, b64encode_sha256
from agent_sandbox.errors import DeclarationError, TransferTimeoutError, UploadTimeoutError
from agent_sandbox.limits import MAX_ENCODED_CHARS, MAX_FILE_BYTES
from agent_sandbox.mcp_server import schemas
from agent_sandbox.mcp_server.arguments import PathArguments, UploadArguments
from agent_sandbox.mcp_server.tool import Call, Fields, make_tool
from agent_sandbox.mcp_server.tools import _words
from agent_sandbox.models import WriteInfo
from agent_sandbox.paths import canonical_path


async def upload_file(call: Call, arguments: UploadArguments) -> Fields:
    """Decode, compare with what was declared, and only then touch a sandbox."""
    path = canonical_path(arguments.path)
    data = b64decode(arguments.content_base64, max_bytes=MAX_FILE_BYTES)
    _check_declaration(arguments, data)

    async def write(sandbox: Sandbox) -> WriteInfo:
        return await sandbox.files.write(path, data)

    info = await call.registry.use(call.use, arguments.sandbox_id, write, UploadTimeoutError)
    return call.file_fields(bytes_written=info.bytes_written, sha256=info.sha256)


def _check_declaration(arguments: UploadArguments, data: bytes) -> None:
    if arguments.size_bytes not in (None, len(data)):
        raise DeclarationError
    if arguments.sha256 is not None:  # only then: what is sent is hashed once more on its way
        digest = Sha256()
        digest.update(data)
        if digest.hexdigest() != arguments.sha256:
            raise DeclarationError


async def download_file(call: Call, arguments: PathArguments) -> Fields:
    """Read at most 1 MiB, counted as it arrives, and encode it."""
    path = canonical_path(arguments.path)
    call.require_streaming()

    async def read(sandbox: Sandbox) -> bytes:
        return await sandbox.files.read_bytes(path, max_bytes=MAX_FILE_BYTES)

    data = await call.registry.use(call.use, arguments.sandbox_id, read, TransferTimeoutError)
    encoded, sha256 = b64encode_sha256(data)
    return call.file_fields(content_base64=encoded, bytes_read=len(data), sha256=sha256)


TOOLS = (
    make_tool(
        upload_file,
        UploadArguments,
        title="Upload a binary file",
        description=(
            "Write bytes to a file in the sandbox, replacing what is there; missing directories"
            f" are created. At most {MAX_FILE_BYTES:,} bytes (1 MiB) after decoding; an empty file"
            " works. content_base64 is strict standard Base64: padded, no white space, no line"
            " breaks. For text use write_file. Give size_bytes or sha256 if you know them: data"
            " that does not match is refused and nothing is written. Never type a file's bytes from"
            " memory: for larger files, and for all but exact Base64 that you hold, use"
            " create_upload_url. Compare bytes_written and"
            " sha256 of the result with the source. After a timeout the file may have been"
            f" written: look at it before you retry. {_words.PATH_IN_SANDBOX}"
            f" {_words.DEFAULT_SANDBOX} {_words.ADOPTS}"
        ),
        input_schema=schemas.closed_input(
            {
                "path": schemas.file_path("The file to write."),
                "content_base64": schemas.text(
                    "The bytes, in standard Base64 with padding (RFC 4648 section 4).",
                    maxLength=MAX_ENCODED_CHARS,
                ),
                "size_bytes": {
                    **schemas.BYTES,
                    "description": "Size of the decoded bytes, if known.",
                },
                "sha256": schemas.SHA256,
                "sandbox_id": schemas.sandbox_choice(_words.ADOPTS),
            },
            required=("path", "content_base64"),
        ),
        output_schema=schemas.file_output(
            {"bytes_written": schemas.BYTES, "sha256": schemas.SHA256}
        ),
        destructive=True,
        idempotent=True,
        advice=_words.LARGER_FILES_IN,
    ),
    make_tool(
        download_file,
        PathArguments,
        title="Download a binary file",
        description=(
            "Return the bytes of a file in the sandbox as Base64, at most"
            f" {MAX_FILE_BYTES:,} bytes (1 MiB); a larger file is refused, never cut: use"
            " create_download_url for it. The bytes are"
            " in structuredContent.content_base64: decode them in the client, and verify"
            " bytes_read and sha256 before saving to a place the user chose. No URL and no path of"
            f" the server is returned. For text use read_file. {_words.PATH_IN_SANDBOX}"
            f" {_words.DEFAULT_SANDBOX} {_words.ADOPTS}"
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
                "content_base64": schemas.text("The bytes.", maxLength=MAX_ENCODED_CHARS),
                "bytes_read": schemas.BYTES,
                "sha256": schemas.SHA256,
            }
        ),
        idempotent=True,
        advice=_words.LARGER_FILES_OUT,
        note=(
            "Decode content_base64 in the client, and verify bytes_read and sha256 before saving."
        ),
    ),
)
