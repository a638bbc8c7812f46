"""From `OSError` to the error tree, and from the error tree to the two forms of the wire."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from starlette.responses import Response

from agent_sandbox.errors import (
    AgentSandboxError,
    FileConflictError,
    FileKindError,
    FileMissingError,
    FileOperationError,
    FilePermissionError,
    InvalidInputError,
    PathError,
    SandboxNotFoundError,
    SandboxUnavailableError,
    StorageFullError,
    UnsupportedError,
)
from agent_sandbox.wire import headers
from agent_sandbox.wire.connect import CODE_OF_STATUS, ConnectCode, ErrorBody, encode_end
from agent_sandbox.wire.e2b import ApiError

_BY_ERRNO: dict[int, type[AgentSandboxError]] = {
    errno.EACCES: FilePermissionError,
    errno.EPERM: FilePermissionError,
    errno.EROFS: FilePermissionError,
    errno.ENOENT: FileMissingError,
    errno.ENOTDIR: FileKindError,
    errno.EISDIR: FileKindError,
    errno.ELOOP: FileKindError,
    errno.ENXIO: FileKindError,
    errno.ENODEV: FileKindError,
    errno.ENAMETOOLONG: PathError,
    errno.EILSEQ: PathError,
    errno.EINVAL: InvalidInputError,
    errno.EEXIST: FileConflictError,
    errno.ENOTEMPTY: FileConflictError,
    errno.EBUSY: FileConflictError,
    errno.ETXTBSY: FileConflictError,
    errno.EAGAIN: FileConflictError,  # somebody holds a lease on it (fcntl(2), F_SETLEASE)
    errno.ENOSPC: StorageFullError,
    errno.EDQUOT: StorageFullError,
    errno.EFBIG: StorageFullError,
    errno.ENOTSUP: UnsupportedError,
    errno.EMFILE: SandboxUnavailableError,
    errno.ENFILE: SandboxUnavailableError,
    errno.ENOMEM: SandboxUnavailableError,
}

GONE_TEXT = "The sandbox was not found"
"""What the data plane says of an ended sandbox: E2B's clients look for these words in a 502."""


RPC_PATHS = ("/filesystem.", "/process.")
"""What the paths of Connect services begin with: those that there are, and others of their kind."""


@contextlib.contextmanager
def os_errors() -> Iterator[None]:
    """Turn an `OSError` of the block into the public error that it means.

    The cause is dropped: its text may hold a path.
    """
    try:
        yield
    except OSError as error:
        kind = _BY_ERRNO.get(error.errno or 0, FileOperationError)
        raise kind from None


def is_rpc(path: str) -> bool:
    """Return whether a URL path belongs to a Connect service and not to the REST surface."""
    return path.startswith(RPC_PATHS)


def data_plane_status(error: AgentSandboxError) -> int:
    """Return the HTTP status of an error on the data plane.

    An ended sandbox is 502 there and not 404, which means a missing file to E2B's clients.
    """
    return 502 if isinstance(error, SandboxNotFoundError) else error.http_status


def rest_answer(error: AgentSandboxError, *, data_plane: bool) -> Response:
    """Return the E2B-compatible `{code, message}` of an error, with its stable code as a header."""
    status = data_plane_status(error) if data_plane else error.http_status
    gone = data_plane and isinstance(error, SandboxNotFoundError)
    body = ApiError(code=status, message=GONE_TEXT if gone else error.text)
    return Response(
        body.to_json(),
        status_code=status,
        media_type="application/json",
        headers={headers.ERROR_CODE: error.code},
    )


def rpc_answer(error: AgentSandboxError) -> Response:
    """Return the answer of a failed unary RPC."""
    return Response(
        rpc_error(error).model_dump_json(),
        status_code=data_plane_status(error),
        media_type="application/json",
        headers={headers.ERROR_CODE: error.code},
    )


def rpc_error(error: AgentSandboxError) -> ErrorBody:
    """Return an error as a Connect error."""
    if isinstance(error, SandboxNotFoundError):
        return ErrorBody(code=ConnectCode.UNAVAILABLE, message=GONE_TEXT)
    code = CODE_OF_STATUS.get(error.http_status, ConnectCode.INTERNAL)
    return ErrorBody(code=code, message=error.text)


def stream_end(error: AgentSandboxError) -> bytes:
    """Return the envelope that ends a stream with an error."""
    return encode_end(rpc_error(error), {headers.ERROR_CODE: [error.code]})
