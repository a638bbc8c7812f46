"""Errors of operations on a sandbox's files."""

from __future__ import annotations

from agent_sandbox.errors.base import AgentSandboxError
from agent_sandbox.errors.inputs import InvalidInputError, SizeLimitError


class FileOperationError(
    AgentSandboxError,
    code="E4000",
    category="file_transfer",
    http=500,
    text="The file operation failed.",
    retry=True,
):
    """An operation on a sandbox's file failed."""


class FileMissingError(
    FileOperationError,
    code="E4001",
    category="not_found",
    http=404,
    text="There is no such file or directory in the sandbox.",
):
    """The path does not exist."""


class FilePermissionError(
    FileOperationError,
    code="E4002",
    category="permission_denied",
    http=403,
    text="The sandbox's permissions do not allow this.",
):
    """The sandbox's own permissions refuse the operation."""


class FileSizeLimitError(
    FileOperationError,
    SizeLimitError,
    code="E4003",
    category="size_limit",
    http=413,
    text="The file is larger than the limit; the transfer was stopped and nothing was returned.",
):
    """A file has more bytes than the caller's bound.

    Attributes:
        limit: The bound, in bytes.
    """


class FileKindError(
    FileOperationError,
    InvalidInputError,
    code="E4004",
    category="invalid_input",
    http=400,
    text="The path names something else than this operation needs: use a regular file or,"
    " to list, a directory.",
):
    """A directory, FIFO, socket or device where a regular file is needed, or the reverse."""


class FileConflictError(
    FileOperationError,
    InvalidInputError,
    code="E4005",
    category="invalid_input",
    http=409,
    text="The target exists already, is in use, or is a directory that is not empty.",
):
    """What is already there stands in the way."""


class StorageFullError(
    FileOperationError,
    code="E4006",
    category="file_transfer",
    http=507,
    text="The sandbox has no room left for this file; nothing was changed.",
    retry=True,
):
    """The disk or the sandbox's quota is full."""


class TransferError(
    FileOperationError,
    code="E4007",
    category="file_transfer",
    http=502,
    text="The transfer broke or its answer could not be trusted; no data was returned.",
    retry=True,
):
    """The peer broke off, or answered in a way that proves nothing about the bytes."""


class TransferTimeoutError(
    FileOperationError,
    code="E4008",
    category="timeout",
    http=504,
    text="The transfer did not end in time and was stopped; no data was returned.",
    retry=True,
):
    """The wall-clock deadline of a read passed."""


class UploadTimeoutError(
    FileOperationError,
    code="E4009",
    category="timeout",
    http=504,
    text=(
        "The write did not end in time. It may have reached the sandbox: inspect the remote file"
        " before you retry."
    ),
    retry=True,
):
    """The wall-clock deadline of a write passed; the outcome is not known."""
