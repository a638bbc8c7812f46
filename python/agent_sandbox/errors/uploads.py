"""Errors of upload sessions and of fetching links."""

from __future__ import annotations

from agent_sandbox.errors.base import AgentSandboxError
from agent_sandbox.errors.inputs import InvalidInputError, SizeLimitError


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
    text="The use of this file has begun, so it cannot be revoked.",
    retry=True,
):
    """A revocation came to a file that is used, or that was tried to be used and failed."""


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
    """The file name breaks the rules or its extension is not allowed; nothing was issued.

    Attributes:
        allowed_extensions: Those that are, where the name has another one; else None.
    """

    allowed_extensions: list[str] | None

    def __init__(self, allowed_extensions: list[str] | None = None) -> None:
        super().__init__(allowed_extensions=allowed_extensions)


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


class DownloadUsedError(
    UploadError,
    code="E7026",
    category="invalid_input",
    http=409,
    text="The one GET of this download is used: call create_download_url again for another one.",
):
    """A second GET came to a download."""


class UploadInterruptedError(
    UploadError,
    code="E7027",
    category="file_transfer",
    http=503,
    text=(
        "The server stopped while the file arrived; nothing was kept and the attempt is used: "
        "open a new session."
    ),
    retry=True,
):
    """The server was told to stop in the middle of a body."""


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
