"""What the package hands to its callers: values of sandboxes and files.

The errors are re-exported here, so that `from agent_sandbox.models import FileSizeLimitError`
works.
"""

from __future__ import annotations

import enum
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from agent_sandbox.errors import (
    AccessError,
    AgentSandboxError,
    ArgumentError,
    AuthenticationError,
    Base64Error,
    CommandFailedError,
    CommandTimeoutError,
    ConfigError,
    CredentialsInvalidError,
    CredentialsMalformedError,
    CredentialsMissingError,
    CredentialsUncheckedError,
    DeclarationError,
    DownloadUsedError,
    FetchError,
    FetchRefusedError,
    FileConflictError,
    FileKindError,
    FileMissingError,
    FileOperationError,
    FilePermissionError,
    FileSizeLimitError,
    InputClosedError,
    InvalidInputError,
    PathError,
    ProcessNotFoundError,
    SandboxError,
    SandboxNotFoundError,
    SandboxOwnedError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    ScopeMissingError,
    ServiceBusyError,
    SizeLimitError,
    SlowReaderError,
    StorageFullError,
    TaskNotFoundError,
    TaskQuotaError,
    TextEncodingError,
    TransferError,
    TransferTimeoutError,
    UnknownToolError,
    UnsupportedError,
    UploadBodyError,
    UploadBodyTimeoutError,
    UploadBusyError,
    UploadConflictError,
    UploadCorruptError,
    UploadEncodingError,
    UploadError,
    UploadExpiredError,
    UploadFailedError,
    UploadFramingError,
    UploadGoneError,
    UploadInterruptedError,
    UploadLengthError,
    UploadLengthRequiredError,
    UploadMethodError,
    UploadNameError,
    UploadNotFoundError,
    UploadNotReadyError,
    UploadOutcomeUnknownError,
    UploadPlacingError,
    UploadQuotaError,
    UploadRateError,
    UploadRevokedError,
    UploadSecretMissingError,
    UploadSizeError,
    UploadStorageError,
    UploadStorageFullError,
    UploadTimeoutError,
    WatchLimitError,
)

__all__ = [
    "AccessError",
    "AgentSandboxError",
    "ArgumentError",
    "AuthenticationError",
    "Base64Error",
    "CommandFailedError",
    "CommandInfo",
    "CommandOutput",
    "CommandResult",
    "CommandTimeoutError",
    "ConfigError",
    "CredentialsInvalidError",
    "CredentialsMalformedError",
    "CredentialsMissingError",
    "CredentialsUncheckedError",
    "DeclarationError",
    "DownloadUsedError",
    "FetchError",
    "FetchRefusedError",
    "FileConflictError",
    "FileEvent",
    "FileEventType",
    "FileInfo",
    "FileKindError",
    "FileMissingError",
    "FileOperationError",
    "FilePermissionError",
    "FileSizeLimitError",
    "FileType",
    "InputClosedError",
    "InvalidInputError",
    "PathError",
    "ProcessNotFoundError",
    "SandboxError",
    "SandboxInfo",
    "SandboxNotFoundError",
    "SandboxOwnedError",
    "SandboxTimeoutError",
    "SandboxUnavailableError",
    "ScopeMissingError",
    "ServiceBusyError",
    "SizeLimitError",
    "SlowReaderError",
    "StorageFullError",
    "TaskNotFoundError",
    "TaskQuotaError",
    "TextEncodingError",
    "TransferError",
    "TransferTimeoutError",
    "UnknownToolError",
    "UnsupportedError",
    "UploadBodyError",
    "UploadBodyTimeoutError",
    "UploadBusyError",
    "UploadConflictError",
    "UploadCorruptError",
    "UploadEncodingError",
    "UploadError",
    "UploadExpiredError",
    "UploadFailedError",
    "UploadFramingError",
    "UploadGoneError",
    "UploadInterruptedError",
    "UploadLengthError",
    "UploadLengthRequiredError",
    "UploadMethodError",
    "UploadNameError",
    "UploadNotFoundError",
    "UploadNotReadyError",
    "UploadOutcomeUnknownError",
    "UploadPlacingError",
    "UploadQuotaError",
    "UploadRateError",
    "UploadRevokedError",
    "UploadSecretMissingError",
    "UploadSizeError",
    "UploadStorageError",
    "UploadStorageFullError",
    "UploadTimeoutError",
    "WatchLimitError",
    "WriteInfo",
]


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class SandboxInfo(_Value):
    """What is known about a sandbox without touching it.

    Attributes:
        sandbox_id: Its handle; at least 128 random bits on Express.
        state: `running`, or what the provider calls another state.
        started_at: When it was made (UTC).
        end_at: When it ends unless it is renewed (UTC).
        metadata: What its creator attached.
    """

    sandbox_id: str
    state: str
    started_at: datetime
    end_at: datetime
    metadata: dict[str, str] = {}


class FileType(enum.StrEnum):
    """What a path names. Symbolic links are not followed to decide it."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class FileInfo(_Value):
    """One entry of a sandbox's file system.

    Attributes:
        name: Last component.
        path: Canonical absolute path in the sandbox.
        type: What it is.
        size_bytes: Size when it was looked at; no promise for a later read.
        mode: Permission bits (`0o644`).
        owner: Owner's name, or number where it has none.
        group: Group's name, or number where it has none.
        modified_at: Time of the last change (UTC).
        symlink_target: Where a symbolic link points, as stored; else None.
    """

    name: str
    path: str
    type: FileType
    size_bytes: int
    mode: int
    owner: str
    group: str
    modified_at: datetime
    symlink_target: str | None = None


class WriteInfo(_Value):
    """What a write did.

    Attributes:
        path: Canonical path that was written.
        bytes_written: Size of the content that was sent.
        sha256: Lower-case hex digest of that content.
    """

    path: str
    bytes_written: int
    sha256: str


class FileEventType(enum.StrEnum):
    """What happened to a path under a watch."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"


class FileEvent(_Value):
    """One change under a watched directory.

    Attributes:
        name: Path relative to the watched directory.
        type: What happened.
    """

    name: str
    type: FileEventType


class CommandInfo(_Value):
    """One command.

    Attributes:
        pid: Its number in the sandbox.
        argv: Program and arguments.
        cwd: Where it was started; None for the home directory.
        tag: A name that its starter gave it, or None.
        exit_code: Its status once it has ended, as in `CommandResult`; None while it runs.
        retained: Whether it keeps its sandbox; known only where ended commands were asked for, too.
    """

    pid: int
    argv: tuple[str, ...]
    cwd: str | None = None
    tag: str | None = None
    exit_code: int | None = None
    retained: bool = False


class CommandOutput(_Value):
    """Some output of a command, as it came.

    Attributes:
        stream: `stdout`, `stderr`, or `pty` for a terminal.
        data: The bytes, cut anywhere.
        omitted_bytes: Bytes of this stream that were left out right before `data`.
    """

    stream: str
    data: bytes
    omitted_bytes: int = 0


class CommandResult(_Value):
    """How a command ended and what it wrote.

    Where there was more output than the bound, the first and the last part are kept: the first
    `stdout_head_bytes` bytes of `stdout_bytes` came before the gap, the rest after it.

    Attributes:
        exit_code: Its status; the negative number of the signal that ended it (-1 where the
            service does not say which); None while it runs, or was killed for want of time.
        stdout_bytes: Standard output, or what a terminal showed.
        stderr_bytes: Standard error.
        stdout_omitted_bytes: Bytes left out of the middle of `stdout_bytes`.
        stderr_omitted_bytes: Bytes left out of the middle of `stderr_bytes`.
        stdout_head_bytes: Where in `stdout_bytes` the gap is.
        stderr_head_bytes: Where in `stderr_bytes` the gap is.
    """

    exit_code: int | None
    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""
    stdout_omitted_bytes: int = 0
    stderr_omitted_bytes: int = 0
    stdout_head_bytes: int = 0
    stderr_head_bytes: int = 0

    @property
    def stdout(self) -> str:
        """Standard output as text: what is no UTF-8 becomes U+FFFD, a gap is named in a line."""
        return _text(self.stdout_bytes, self.stdout_head_bytes, self.stdout_omitted_bytes)

    @property
    def stderr(self) -> str:
        """Standard error as text, like `stdout`."""
        return _text(self.stderr_bytes, self.stderr_head_bytes, self.stderr_omitted_bytes)


def _text(data: bytes, head_bytes: int, omitted_bytes: int) -> str:
    if not omitted_bytes:
        return data.decode(errors="replace")
    head, tail = data[:head_bytes], data[head_bytes:]
    gap = f"\n[... {omitted_bytes} bytes left out ...]\n"
    return head.decode(errors="replace") + gap + tail.decode(errors="replace")
