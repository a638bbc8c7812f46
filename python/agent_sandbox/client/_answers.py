"""What an answer's head means: which error, which framing, which encoding."""

from __future__ import annotations

from dataclasses import dataclass

from agent_sandbox.client._calls import Head
from agent_sandbox.errors import (
    BY_CODE,
    AgentSandboxError,
    ArgumentError,
    AuthenticationError,
    Base64Error,
    FileConflictError,
    FileKindError,
    FileMissingError,
    FileOperationError,
    FilePermissionError,
    InvalidInputError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    SizeLimitError,
    StorageFullError,
    TransferError,
    TransferTimeoutError,
    UnknownToolError,
    UnsupportedError,
    UploadTimeoutError,
)
from agent_sandbox.wire import headers
from agent_sandbox.wire.connect import ConnectCode

_OURS_ALONE = (Base64Error, SizeLimitError, UnknownToolError, UnsupportedError)
"""Made on this side only, or with attributes that an answer does not carry."""

_FROM_SERVICE: dict[str, type[AgentSandboxError]] = {
    code: cls
    for code, cls in BY_CODE.items()
    if issubclass(cls, InvalidInputError | FileOperationError | SandboxError)
    and not issubclass(cls, _OURS_ALONE)
}
"""The codes a service may speak of; beside another one the status counts."""


def named_error(head: Head) -> type[AgentSandboxError] | None:
    """Return the error whose code our own services put beside an answer, if it is a known one."""
    for code in head.headers.get_list(headers.ERROR_CODE):
        if code in _FROM_SERVICE:
            return _FROM_SERVICE[code]
    return None


@dataclass(frozen=True, slots=True)
class Failures:
    """How one kind of call reads a status that is not a success.

    Attributes:
        by_status: The error for a status.
        other: The error for every other status, redirects and odd successes too.
    """

    by_status: dict[int, type[AgentSandboxError]]
    other: type[AgentSandboxError]

    def check(self, head: Head, *good: int) -> None:
        """Raise the error that a head stands for, unless its status is one of `good`.

        The code that our own services send decides first; then the status. The body is never
        looked at: what a peer writes there is not ours to repeat.
        """
        if head.status in good:
            return
        if head.status >= 400 and (named := named_error(head)):
            raise named
        raise self.by_status.get(head.status, self.other)


_DATA: dict[int, type[AgentSandboxError]] = {
    # Paths are checked before they are sent, so a 400 speaks of what the path names.
    400: FileKindError,
    401: AuthenticationError,
    403: FilePermissionError,
    404: FileMissingError,
    409: FileConflictError,
    413: StorageFullError,
    429: SandboxUnavailableError,
    502: SandboxUnavailableError,
    503: SandboxUnavailableError,
    507: StorageFullError,
}

READ = Failures(_DATA | {408: TransferTimeoutError, 504: TransferTimeoutError}, TransferError)
WRITE = Failures(_DATA | {408: UploadTimeoutError, 504: UploadTimeoutError}, TransferError)
CONTROL = Failures(
    {
        400: ArgumentError,
        401: AuthenticationError,
        403: AuthenticationError,
        404: SandboxNotFoundError,
        408: SandboxTimeoutError,
        504: SandboxTimeoutError,
    },
    SandboxUnavailableError,
)

STREAM_END: dict[ConnectCode, type[AgentSandboxError]] = {
    ConnectCode.INVALID_ARGUMENT: FileKindError,
    ConnectCode.FAILED_PRECONDITION: FileKindError,
    ConnectCode.NOT_FOUND: FileMissingError,
    ConnectCode.ALREADY_EXISTS: FileConflictError,
    ConnectCode.PERMISSION_DENIED: FilePermissionError,
    ConnectCode.UNAUTHENTICATED: AuthenticationError,
    ConnectCode.DEADLINE_EXCEEDED: TransferTimeoutError,
    ConnectCode.UNAVAILABLE: SandboxUnavailableError,
    ConnectCode.RESOURCE_EXHAUSTED: StorageFullError,
}
"""What the error at the end of a stream means; every other code is a `TransferError`."""


def require_identity(head: Head) -> None:
    """Refuse a body with any Content-Encoding but identity, whatever lines it is spread over.

    Raises:
        TransferError: E4007.
    """
    if any(coding not in ("", "identity") for coding in head.all("content-encoding")):
        raise TransferError


def require_framing(head: Head) -> int | None:
    """Refuse an HTTP/1 body whose end cannot be proved (RFC 9112 section 6.3).

    Returns:
        The declared length, or None where the body is chunked or HTTP/2 frames it.

    Raises:
        TransferError: E4007: neither length nor chunking, both, differing or malformed lengths,
            or another coding than one `chunked` on HTTP/1.1.
    """
    lengths, codings = head.all("content-length"), head.all("transfer-encoding")
    if head.http_version.startswith("HTTP/1") and not lengths:
        if codings != ["chunked"] or head.http_version != "HTTP/1.1":
            raise TransferError
        return None
    if codings or len(set(lengths)) > 1:
        raise TransferError
    if not lengths:
        return None
    length = lengths[0]
    if not (length.isascii() and length.isdigit() and len(length) <= 20):
        raise TransferError
    return int(length)
