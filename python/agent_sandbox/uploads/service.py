"""The use cases of upload sessions: the only caller of the store and of the blobs."""

from __future__ import annotations

from collections.abc import AsyncIterable

from agent_sandbox.uploads.models import (
    Attempt,
    DeclaredUpload,
    Kind,
    Placed,
    Placer,
    PlaceTarget,
    Principal,
    StoredUpload,
    UploadsConfig,
    UploadSession,
)


class UploadService:
    """Upload and download sessions over one store and one blob store (signatures first)."""

    config: UploadsConfig

    async def create(
        self, principal: Principal, filename: str, size_bytes: int, sha256: str | None = None
    ) -> tuple[UploadSession, str]:
        """Open a session and return it with its secret, which is shown this once.

        Raises: ArgumentError, UploadNameError, UploadSizeError, UploadQuotaError,
        UploadRateError, UploadBusyError.
        """
        raise NotImplementedError

    async def authorise(
        self, upload_id: str, endpoint: str, secret: str | None, *, kind: Kind = "upload"
    ) -> UploadSession:
        """Return the session that takes a PUT (or, with `kind` download, a GET) now.

        In the matrix's order: UploadSecretMissingError (401), UploadNotFoundError (404, the same
        for unknown id, wrong secret, wrong endpoint), UploadConflictError (409),
        UploadExpiredError and UploadRevokedError (410). Nothing is used up.

        `secret` is the whole value of the one Authorization header, as text or None.
        """
        raise NotImplementedError

    async def claim(self, session: UploadSession) -> Attempt:
        """Take the one attempt: the compare-and-set. Raises like `authorise` if it lost."""
        raise NotImplementedError

    async def receive(self, attempt: Attempt, chunks: AsyncIterable[bytes]) -> StoredUpload:
        """Stream the body to the blob, verify it, publish it, commit it.

        `chunks` ends only when the server says that the body ended; anything else raises (an
        error of our tree is passed on after the session is `failed`).

        Raises: UploadBodyError, UploadBodyTimeoutError, UploadStorageFullError,
        UploadStorageError, UploadRevokedError, UploadOutcomeUnknownError, UploadBusyError.
        """
        raise NotImplementedError

    async def get(self, principal: Principal, upload_id: str, wait_s: float = 0.0) -> UploadSession:
        """Return the caller's session; with `wait_s`, once it leaves pending and receiving."""
        raise NotImplementedError

    async def place(
        self,
        principal: Principal,
        upload_id: str,
        placer: Placer,
        path: str | None = None,
        sandbox_id: str | None = None,
    ) -> Placed:
        """Use the file once; a repeat returns the recorded result."""
        raise NotImplementedError

    async def revoke(self, principal: Principal, upload_id: str) -> UploadSession:
        """End the caller's session; a no-op at an end, UploadPlacingError while placing."""
        raise NotImplementedError

    async def revoke_principal(self, credential_id: str, workspace: str | None = None) -> int:
        """Kill the unused secrets of a credential that was removed; return how many."""
        raise NotImplementedError

    async def stage_download(
        self, principal: Principal, filename: str, chunks: AsyncIterable[bytes], max_bytes: int
    ) -> tuple[UploadSession, str]:
        """Stage a bounded stream to a blob; return the session and its secret for one GET.

        The session's `received_bytes` and `received_sha256` are what to declare.
        """
        raise NotImplementedError

    async def claim_download(self, session: UploadSession) -> Download:
        """Take the one GET of a download session that `authorise` returned."""
        raise NotImplementedError

    async def check(self) -> None:
        """Return if the store and the blobs answer; for health checks. UploadBusyError."""
        raise NotImplementedError

    async def recover(self, *, abandon_all: bool = False) -> int:
        """Settle attempts that a crash left open; return how many."""
        raise NotImplementedError

    async def sweep(self) -> dict[str, int]:
        """Expire, delete, reconcile; return counts by what was done."""
        raise NotImplementedError


class Download:
    """The one GET of a download session. Iterate it to its end, or `aclose` it."""

    size_bytes: int
    sha256: str
    filename: str

    def __aiter__(self) -> Download:
        return self

    async def __anext__(self) -> bytes:
        raise NotImplementedError

    async def aclose(self) -> None:
        """End the download; the session is used up, and its blob is deleted."""


__all__ = ["Download", "PlaceTarget", "UploadService", "DeclaredUpload"]
