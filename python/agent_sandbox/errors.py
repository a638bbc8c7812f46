"""Every public error of agent_sandbox, in one tree and one table.

::

    AgentSandboxError                       E1000
    ├── InvalidInputError                   E2000
    │   ├── ArgumentError                   E2001
    │   ├── PathError                       E2002
    │   ├── Base64Error (ValueError)        E2003   .offset
    │   ├── TextEncodingError               E2004
    │   ├── DeclarationError                E2005
    │   └── UnknownToolError                E2006
    ├── SizeLimitError                      E3001   .limit
    ├── FileOperationError                  E4000
    │   ├── FileMissingError                E4001
    │   ├── FilePermissionError             E4002
    │   ├── FileSizeLimitError              E4003   .limit (also a SizeLimitError)
    │   ├── FileKindError (InvalidInput)    E4004
    │   ├── FileConflictError (InvalidInput) E4005
    │   ├── StorageFullError                E4006
    │   ├── TransferError                   E4007
    │   ├── TransferTimeoutError            E4008
    │   └── UploadTimeoutError              E4009
    ├── SandboxError                        E5000
    │   ├── SandboxNotFoundError            E5001
    │   ├── SandboxOwnedError               E5002
    │   ├── SandboxUnavailableError         E5003
    │   ├── SandboxTimeoutError             E5004
    │   ├── AuthenticationError             E5005
    │   ├── UnsupportedError                E5006
    │   ├── ProcessNotFoundError            E5007
    │   ├── CommandTimeoutError             E5008   .result
    │   ├── CommandFailedError              E5009   .result
    │   ├── SlowReaderError                 E5010
    │   └── InputClosedError (InvalidInput) E5011
    ├── ConfigError                         E6000
    └── UploadError                         E7000
        ├── UploadNotReadyError             E7001   .state
        ├── UploadNotFoundError             E7002
        ├── UploadGoneError                 E7003
        │   ├── UploadExpiredError          E7004
        │   └── UploadRevokedError          E7005
        ├── UploadFailedError               E7006
        ├── UploadConflictError             E7007   .state
        ├── UploadPlacingError              E7008
        ├── UploadQuotaError                E7009   .quota
        ├── UploadRateError                 E7010   .retry_after_s
        ├── UploadOutcomeUnknownError       E7011   .state
        ├── UploadSecretMissingError        E7012
        ├── UploadNameError                 E7013
        ├── UploadSizeError (SizeLimit)     E7014   .limit
        ├── UploadBodyError                 E7015
        ├── UploadBodyTimeoutError          E7016
        ├── UploadStorageFullError          E7017
        ├── UploadStorageError              E7018
        ├── UploadBusyError                 E7019
        ├── UploadCorruptError              E7020
        ├── UploadFramingError              E7021
        ├── UploadMethodError               E7022
        ├── UploadEncodingError             E7023
        ├── UploadLengthRequiredError       E7024
        ├── UploadLengthError               E7025
        ├── FetchRefusedError               E7030
        └── FetchError                      E7031

A message never holds input: no path, no secret, no upstream text, no file content. Whatever a
program needs beyond the code stands in attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

Category = Literal[
    "invalid_input",
    "size_limit",
    "not_found",
    "permission_denied",
    "sandbox_not_found",
    "unsupported",
    "timeout",
    "file_transfer",
]
"""The eight failure categories that MCP tools report."""

CATEGORIES: tuple[Category, ...] = get_args(Category)

EXIT_STATUS: dict[Category, int] = {
    "invalid_input": 2,
    "not_found": 3,
    "permission_denied": 4,
    "size_limit": 5,
    "sandbox_not_found": 6,
    "unsupported": 7,
    "timeout": 8,
    "file_transfer": 9,
}
"""Exit status of the `agent-sandbox` command for each category."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row of the error table: how an error looks at every edge."""

    code: str
    category: Category
    http_status: int
    exit_status: int
    retry_may_help: bool
    text: str


TABLE: dict[type[AgentSandboxError], ErrorRow] = {}
"""Every public error with its row. `docs/errors.md` is tested against it."""


class AgentSandboxError(Exception):
    """The base of every error that this package raises on purpose.

    Attributes:
        code: Stable identifier (`E4003`); never reused for another meaning.
        category: One of `CATEGORIES`, as MCP tools report it.
        text: The fixed message; `str(error)` is the same text.
        http_status: The status our own services answer with.
        retry_may_help: True where the same call may succeed later.
    """

    code: ClassVar[str]
    category: ClassVar[Category]
    text: ClassVar[str]
    http_status: ClassVar[int]
    retry_may_help: ClassVar[bool]

    def __init_subclass__(
        cls, *, code: str, category: Category, http: int, text: str, retry: bool = False
    ) -> None:
        super().__init_subclass__()
        cls._enter(code, category, http, text, retry)

    @classmethod
    def _enter(cls, code: str, category: Category, http: int, text: str, retry: bool) -> None:
        cls.code, cls.category, cls.text = code, category, text
        cls.http_status, cls.retry_may_help = http, retry
        TABLE[cls] = ErrorRow(code, category, http, EXIT_STATUS[category], retry, text)

    def __init__(self, **details: Any) -> None:
        super().__init__(self.text)
        self.__dict__.update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        # Rebuilt from its attributes: the default would call __init__ with the message.
        return _rebuild, (type(self), dict(self.__dict__))


def _rebuild(cls: type[AgentSandboxError], details: dict[str, Any]) -> AgentSandboxError:
    error = cls.__new__(cls)
    AgentSandboxError.__init__(error, **details)
    return error


AgentSandboxError._enter(
    "E1000", "file_transfer", 500, "An internal error stopped the operation.", False
)


# --- The caller's input ---------------------------------------------------------------------


class InvalidInputError(
    AgentSandboxError,
    code="E2000",
    category="invalid_input",
    http=400,
    text="The input is not valid.",
):
    """The caller sent something that can never work; nothing was touched."""


class ArgumentError(
    InvalidInputError,
    code="E2001",
    category="invalid_input",
    http=400,
    text="The arguments do not match the schema: check names, types and ranges.",
):
    """An argument is unknown, missing, of the wrong type or out of its range."""


class PathError(
    InvalidInputError,
    code="E2002",
    category="invalid_input",
    http=400,
    text=(
        "The path is not valid: it must be absolute, at most 4096 UTF-8 bytes, with no NUL and no"
        " '..' component; a component has at most 255 bytes, and a file's path does not end in '/'."
    ),
):
    """A remote path breaks the rules of `agent_sandbox.paths`."""


class Base64Error(
    InvalidInputError,
    ValueError,
    code="E2003",
    category="invalid_input",
    http=400,
    text=(
        "The data is not strict Base64: standard alphabet, padded, no white space, unused bits"
        " zero (RFC 4648 section 4)."
    ),
):
    """The text is not canonical Base64.

    Attributes:
        offset: Index of the first offending symbol; the length of the input where the length is
            wrong; the last symbol where unused trailing bits are not zero.
    """

    offset: int

    def __init__(self, offset: int) -> None:
        super().__init__(offset=offset)


class TextEncodingError(
    InvalidInputError,
    code="E2004",
    category="invalid_input",
    http=400,
    text="The content is not UTF-8 text: use download_file and upload_file for binary data.",
):
    """Bytes that were asked for as text, or text that has no UTF-8 form."""


class DeclarationError(
    InvalidInputError,
    code="E2005",
    category="invalid_input",
    http=400,
    text=(
        "The data does not match its declared size_bytes or sha256; nothing was written. Do not"
        " retype the data; open an upload session."
    ),
):
    """Declared size or digest and the data that came do not agree."""


class UnknownToolError(
    InvalidInputError,
    code="E2006",
    category="invalid_input",
    http=404,
    text="There is no tool of this name: call tools/list for the names.",
):
    """An MCP client called a tool that this server does not have."""


class SizeLimitError(
    AgentSandboxError,
    code="E3001",
    category="size_limit",
    http=413,
    text="The data is larger than the limit.",
):
    """More bytes than a bound allows.

    Attributes:
        limit: The bound, in bytes.
    """

    limit: int

    def __init__(self, limit: int) -> None:
        super().__init__(limit=limit)


# --- Files ----------------------------------------------------------------------------------


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

    def __init__(self, limit: int) -> None:
        SizeLimitError.__init__(self, limit)


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
    text="The target exists already, or the directory is not empty.",
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


# --- Sandboxes ------------------------------------------------------------------------------


class SandboxError(
    AgentSandboxError,
    code="E5000",
    category="file_transfer",
    http=500,
    text="The sandbox operation failed.",
    retry=True,
):
    """An operation on a sandbox itself failed."""


class SandboxNotFoundError(
    SandboxError,
    code="E5001",
    category="sandbox_not_found",
    http=404,
    text="There is no such sandbox: it never existed, has ended, or is not yours.",
):
    """The sandbox is unknown, ended or foreign; the three look the same."""


class SandboxOwnedError(
    SandboxError,
    code="E5002",
    category="permission_denied",
    http=409,
    text="Another session owns this sandbox: use one of your own, or none for the default.",
):
    """Adoption is exclusive between sessions, and another one was first."""


class SandboxUnavailableError(
    SandboxError,
    code="E5003",
    category="file_transfer",
    http=503,
    text="The sandbox service cannot be reached or gave an answer that cannot be used.",
    retry=True,
):
    """The service is down, broken, or speaks another protocol."""


class SandboxTimeoutError(
    SandboxError,
    code="E5004",
    category="timeout",
    http=504,
    text="The sandbox did not become ready in time.",
    retry=True,
):
    """Creating or finding a sandbox took longer than its own limit."""


class AuthenticationError(
    SandboxError,
    code="E5005",
    category="permission_denied",
    http=401,
    text="The sandbox service refused the credentials: check the API key or the token.",
):
    """Credentials are missing, wrong or revoked."""


class UnsupportedError(
    SandboxError,
    code="E5006",
    category="unsupported",
    http=501,
    text="The provider does not support this operation; nothing was done.",
):
    """The provider cannot do this, and nothing weaker was done instead."""


class ProcessNotFoundError(
    SandboxError,
    code="E5007",
    category="not_found",
    http=404,
    text="There is no such command in the sandbox: it has ended, or never ran.",
):
    """No command of the sandbox has this number."""


class CommandTimeoutError(
    SandboxError,
    code="E5008",
    category="timeout",
    http=504,
    text="The command did not end in time and was killed with everything in its process group.",
):
    """The time of a command was over.

    Attributes:
        result: What it had written until then (`models.CommandResult`); None where that is
            not known.
    """

    result: Any = None


class CommandFailedError(
    SandboxError,
    code="E5009",
    category="file_transfer",
    http=500,
    text="The command ended with another status than 0.",
):
    """A command that was checked did not succeed; without a check that is a result.

    Attributes:
        result: How it ended and what it had written (`models.CommandResult`).
    """

    result: Any = None


class SlowReaderError(
    SandboxError,
    code="E5010",
    category="file_transfer",
    http=429,
    text="The output was not read for too long, so its stream was ended; the command runs on.",
    retry=True,
):
    """A reader that took nothing was let go, so that the command could go on."""


class InputClosedError(
    SandboxError,
    InvalidInputError,
    code="E5011",
    category="invalid_input",
    http=400,
    text="The command takes no input: it was started without, or its input was closed.",
):
    """There is nobody who would read the input."""


class ConfigError(
    AgentSandboxError,
    code="E6000",
    category="invalid_input",
    http=500,
    text="The configuration is not valid: see `agent-sandbox --help` and docs/sdk.md.",
):
    """Settings that contradict each other or cannot work."""


# --- Uploads --------------------------------------------------------------------------------


class UploadError(
    AgentSandboxError,
    code="E7000",
    category="file_transfer",
    http=500,
    text="The upload session failed.",
):
    """An operation on an upload or download session failed."""


class UploadNotReadyError(
    UploadError,
    code="E7001",
    category="invalid_input",
    http=409,
    text=("The file of this upload has not arrived yet: PUT it first, then check with get_upload."),
    retry=True,
):
    """The session is still pending or receiving.

    Attributes:
        state: `pending` or `receiving`.
    """

    state: str

    def __init__(self, state: str = "") -> None:
        super().__init__(state=state)


class UploadNotFoundError(
    UploadError,
    code="E7002",
    category="not_found",
    http=404,
    text="There is no such upload session here: check the id, or open a new session.",
):
    """The id is unknown or foreign, or the secret is wrong; they all look the same."""


class UploadGoneError(
    UploadError,
    code="E7003",
    category="not_found",
    http=410,
    text="This upload session has ended: open a new session.",
):
    """The session ended without being used."""


class UploadExpiredError(
    UploadGoneError,
    code="E7004",
    category="not_found",
    http=410,
    text="This upload session has expired and its bytes are gone: open a new session.",
):
    """The secret's or the file's life is over."""


class UploadRevokedError(
    UploadGoneError,
    code="E7005",
    category="not_found",
    http=410,
    text="This upload session was revoked and its bytes are gone: open a new session.",
):
    """The session or its credential was revoked."""


class UploadFailedError(
    UploadError,
    code="E7006",
    category="invalid_input",
    http=409,
    text=(
        "The one attempt of this upload session failed and nothing was kept: open a new session."
    ),
):
    """The PUT of this session ended without a whole, right file."""


class UploadConflictError(
    UploadError,
    code="E7007",
    category="invalid_input",
    http=409,
    text=(
        "The one attempt of this upload session is used and nothing was replaced. Do not PUT "
        "again: call place_upload with the same id, and only if it is not stored open a new "
        "session."
    ),
):
    """A second PUT came to a session.

    Attributes:
        state: What the session was found in.
    """

    state: str

    def __init__(self, state: str = "") -> None:
        super().__init__(state=state)


class UploadPlacingError(
    UploadError,
    code="E7008",
    category="invalid_input",
    http=409,
    text="The file is being placed right now and cannot be revoked.",
    retry=True,
):
    """A revocation came while the file was being used."""


class UploadQuotaError(
    UploadError,
    code="E7009",
    category="permission_denied",
    http=429,
    text=(
        "This workspace has too many upload sessions: use or revoke the pending ones, or wait"
        " for the hour to pass."
    ),
    retry=True,
):
    """A quota of the workspace is used up; nothing was issued.

    Attributes:
        quota: `pending` or `hourly`.
    """

    quota: str

    def __init__(self, quota: str = "") -> None:
        super().__init__(quota=quota)


class UploadRateError(
    UploadError,
    code="E7010",
    category="permission_denied",
    http=429,
    text="Too many upload sessions in a short time: wait a little and try again.",
    retry=True,
):
    """The rate limit of the principal is used up; nothing was issued.

    Attributes:
        retry_after_s: Whole seconds until the next call can succeed.
    """

    retry_after_s: int

    def __init__(self, retry_after_s: int = 1) -> None:
        super().__init__(retry_after_s=retry_after_s)


class UploadOutcomeUnknownError(
    UploadError,
    code="E7011",
    category="file_transfer",
    http=503,
    text=(
        "The outcome of the last step is not known; the bytes are kept. Do not PUT again: "
        "call place_upload or get_upload with the same id in a moment."
    ),
    retry=True,
):
    """Whether the last step took effect cannot be told at the moment.

    Attributes:
        state: What the session was last known to be in.
    """

    state: str

    def __init__(self, state: str = "") -> None:
        super().__init__(state=state)


class UploadSecretMissingError(
    UploadError,
    code="E7012",
    category="permission_denied",
    http=401,
    text=(
        "The Authorization header of the upload session is missing: send the headers of "
        "create_upload_url exactly as given."
    ),
):
    """A request to a transfer endpoint carried no secret."""


class UploadNameError(
    UploadError,
    InvalidInputError,
    code="E7013",
    category="invalid_input",
    http=400,
    text=(
        "The filename is not accepted: a plain name of at most 255 UTF-8 bytes, without "
        "slashes, control or direction characters, with an allowed extension."
    ),
):
    """The file name breaks the rules or its extension is not allowed; nothing was issued."""


class UploadSizeError(
    UploadError,
    SizeLimitError,
    code="E7014",
    category="size_limit",
    http=413,
    text="The file is larger than uploads may be here; nothing was issued or kept.",
):
    """The declared or announced size is over the cap.

    Attributes:
        limit: The cap, in bytes.
    """

    def __init__(self, limit: int) -> None:
        SizeLimitError.__init__(self, limit)


class UploadBodyError(
    UploadError,
    InvalidInputError,
    code="E7015",
    category="invalid_input",
    http=400,
    text=(
        "The body was not the declared file; nothing was kept and the attempt is used: open a"
        " new session with the right size_bytes and sha256."
    ),
):
    """A body was short, long, broken off or had another digest."""


class UploadBodyTimeoutError(
    UploadError,
    code="E7016",
    category="timeout",
    http=408,
    text=(
        "The body did not arrive in time; nothing was kept and the attempt is used: open a "
        "new session."
    ),
):
    """The body's deadline passed."""


class UploadStorageFullError(
    UploadError,
    code="E7017",
    category="file_transfer",
    http=507,
    text=(
        "There is no room for this file; nothing was kept and the attempt is used: open a new"
        " session later."
    ),
    retry=True,
):
    """The storage of uploads is full."""


class UploadStorageError(
    UploadError,
    code="E7018",
    category="file_transfer",
    http=500,
    text=(
        "The file could not be stored; nothing was kept and the attempt is used: open a new "
        "session."
    ),
    retry=True,
):
    """The storage of uploads failed for certain."""


class UploadBusyError(
    UploadError,
    code="E7019",
    category="file_transfer",
    http=503,
    text="The upload service is busy or cannot reach its database: try again in a moment.",
    retry=True,
):
    """The store did not answer in time; nothing was changed."""


class UploadCorruptError(
    UploadError,
    code="E7020",
    category="file_transfer",
    http=500,
    text="The stored file no longer has its digest; nothing was written: open a new session.",
):
    """What was read back is not what was stored."""


class UploadFramingError(
    UploadError,
    InvalidInputError,
    code="E7021",
    category="invalid_input",
    http=400,
    text=(
        "The request is not framed as this endpoint needs it: one Content-Length, no "
        "Transfer-Encoding, Content-Range or Upgrade."
    ),
):
    """The request's framing is ambiguous or partial; the attempt is not used."""


class UploadMethodError(
    UploadError,
    InvalidInputError,
    code="E7022",
    category="invalid_input",
    http=405,
    text="This endpoint takes another method.",
):
    """The method is not served here."""


class UploadEncodingError(
    UploadError,
    InvalidInputError,
    code="E7023",
    category="invalid_input",
    http=415,
    text="The body must be the plain bytes of the file, without Content-Encoding.",
):
    """A compressed body was announced; the attempt is not used."""


class UploadLengthRequiredError(
    UploadError,
    InvalidInputError,
    code="E7024",
    category="invalid_input",
    http=411,
    text="Content-Length is required.",
):
    """The body's length was not announced; the attempt is not used."""


class UploadLengthError(
    UploadError,
    InvalidInputError,
    code="E7025",
    category="invalid_input",
    http=400,
    text=(
        "Content-Length is not the declared size_bytes; the attempt is not used: send the "
        "declared file, or open a new session with the right size."
    ),
):
    """The announced length is not the declared size."""


class FetchRefusedError(
    UploadError,
    code="E7030",
    category="permission_denied",
    http=403,
    text="This link is not fetched: it must be a public https address, in every redirect.",
):
    """The link or an address behind it is outside what the server fetches."""


class FetchError(
    UploadError,
    code="E7031",
    category="file_transfer",
    http=502,
    text="The link could not be fetched whole; nothing was written.",
    retry=True,
):
    """The remote server failed, broke off or sent something unusable."""


BY_CODE: dict[str, type[AgentSandboxError]] = {row.code: cls for cls, row in TABLE.items()}
"""Every error by its stable code."""
