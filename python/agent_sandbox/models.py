"""What the package hands to its callers: values of sandboxes and files.

The errors are re-exported here, so that `from agent_sandbox.models import FileSizeLimitError`
works.
"""

from __future__ import annotations

import enum
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from agent_sandbox.errors import (
    AgentSandboxError,
    ArgumentError,
    AuthenticationError,
    Base64Error,
    ConfigError,
    DeclarationError,
    FetchError,
    FetchRefusedError,
    FileConflictError,
    FileKindError,
    FileMissingError,
    FileOperationError,
    FilePermissionError,
    FileSizeLimitError,
    InvalidInputError,
    PathError,
    SandboxError,
    SandboxNotFoundError,
    SandboxOwnedError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    SizeLimitError,
    StorageFullError,
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
)

__all__ = [
    "AgentSandboxError",
    "ArgumentError",
    "AuthenticationError",
    "Base64Error",
    "ConfigError",
    "DeclarationError",
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
    "InvalidInputError",
    "PathError",
    "SandboxError",
    "SandboxInfo",
    "SandboxNotFoundError",
    "SandboxOwnedError",
    "SandboxTimeoutError",
    "SandboxUnavailableError",
    "SizeLimitError",
    "StorageFullError",
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
