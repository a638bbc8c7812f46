"""The use cases of upload sessions: the only caller of the store and of the blobs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NoReturn

import anyio

from agent_sandbox.errors import (
    AgentSandboxError,
    UploadNotFoundError,
    UploadNotReadyError,
    UploadRevokedError,
)
from agent_sandbox.uploads import admission, placing, receiving, revoking, secrets, upkeep
from agent_sandbox.uploads.audit import Audit, Observer, Tally
from agent_sandbox.uploads.blobs import BlobStore
from agent_sandbox.uploads.core import POLL_S, Core
from agent_sandbox.uploads.declarations import declared, declared_download
from agent_sandbox.uploads.downloading import Download, claim_download
from agent_sandbox.uploads.models import (
    Attempt,
    Charge,
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
from agent_sandbox.uploads.rates import RateLimit
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store import NewSession, UploadStore

_log = logging.getLogger(__name__)

DRAIN_S = 5.0
"""Longest wait for what is under way when a server ends."""

PROBE_NAME = "check_transfer/probe"
"""Display name of a probe; with its slash it can be no name that a caller gave."""


class UploadService:
    """Upload and download sessions over one store and one blob store.

    Replicas need nothing but the same database, bucket and server key. Any method may raise
    `UploadBusyError` (E7019) where the database does not answer in time.

    Args:
        config: Settings.
        store: The rows.
        blobs: The bytes.
        charge: An embedder's charge hook; runs only at use.
        observer: Told of every change, for metrics: ids, states and error codes only.
        hashed: False leaves out the digest. For benches; nothing is verified then.
        admits: Says whether a credential (by its `credential_id`) still stands; asked at each PUT
            and GET, so that a removed one takes its unused secrets along. None admits all.
    """

    def __init__(
        self,
        config: UploadsConfig,
        store: UploadStore,
        blobs: BlobStore,
        *,
        charge: Charge | None = None,
        observer: Observer | None = None,
        hashed: bool = True,
        admits: Callable[[str], bool] | None = None,
    ) -> None:
        self.config = config
        self._core = Core(config, store, blobs, Audit(observer))
        self._charge = charge
        self._rates = RateLimit(config.creates_per_minute)
        self._hashed = hashed
        self._admits = admits

    async def create(
        self, principal: Principal, filename: str, size_bytes: int, sha256: str | None = None
    ) -> tuple[UploadSession, str]:
        """Open a session and return it with its secret, which is shown this once.

        Raises:
            ArgumentError: E2001, wrong types, a negative size, no hex digest.
            UploadNameError: E7013.
            UploadSizeError: E7014.
            UploadRateError: E7010.
            UploadQuotaError: E7009.
        """
        with self._counted("create"):
            wanted = declared(self.config, filename, size_bytes, sha256)
            return await self._open(principal, "upload", wanted)

    async def create_probe(self, principal: Principal) -> tuple[UploadSession, str]:
        """Open an empty session that shows whether a PUT arrives, under a name of its own.

        Raises:
            UploadRateError: E7010.
            UploadQuotaError: E7009.
        """
        with self._counted("create"):
            return await self._open(principal, "upload", DeclaredUpload(PROBE_NAME, 0))

    async def last_probe(self, principal: Principal) -> UploadSession | None:
        """Return the caller's latest probe, whichever replica opened it."""
        return await self._core.store.latest(
            principal.credential_id, principal.workspace, PROBE_NAME
        )

    async def _open(
        self, principal: Principal, kind: Kind, wanted: DeclaredUpload
    ) -> tuple[UploadSession, str]:
        self._rates.take(principal)
        config = self.config
        upload_id, secret = secrets.new_id(), secrets.new_secret()
        endpoint = config.endpoint(kind, upload_id)
        use_life_s = config.use_lifetime_s if kind == "upload" else config.put_lifetime_s
        session = await self._core.store.create(
            NewSession(
                upload_id=upload_id,
                kind=kind,
                workspace=principal.workspace,
                credential_id=principal.credential_id,
                endpoint=endpoint,
                filename=wanted.filename,
                size_bytes=wanted.size_bytes,
                sha256=wanted.sha256,
                secret_hmac=secrets.secret_hmac(config.server_key, upload_id, endpoint, secret),
                put_life_ms=config.put_lifetime_s * 1_000,
                use_life_ms=use_life_s * 1_000,
                pending_max=config.pending_per_workspace,
                hourly_max=config.hourly_per_workspace,
            )
        )
        self._core.tell(session, "create")
        return session, secret

    async def authorise(
        self, upload_id: str, endpoint: str, secret: str | None, *, kind: Kind = "upload"
    ) -> UploadSession:
        """Return the session that takes a PUT (or, with `kind` download, a GET) now.

        Nothing is used up. Checks in this order, which the specification fixes:

        Args:
            upload_id: From the URL.
            endpoint: Path of the request, which the secret is bound to.
            secret: Whole value of the one `Authorization` header, None where it is missing.
            kind: Which way the bytes are to go.

        Raises:
            UploadSecretMissingError: E7012 (401).
            UploadNotFoundError: E7002 (404), the same for an unknown id, a wrong secret and a
                wrong endpoint.
            UploadConflictError: E7007 (409), the attempt is used.
            DownloadUsedError: E7026 (409), the one GET is used.
            UploadGoneError: E7003 (410), expired or revoked.
        """
        return await admission.authorise(
            self._core, upload_id, endpoint, secret, kind, self._check_credential
        )

    async def _check_credential(self, session: UploadSession) -> None:
        if self._admits is not None and not self._admits(session.credential_id):
            await self.revoke_principal(session.credential_id)
            raise UploadRevokedError

    async def claim(self, session: UploadSession) -> Attempt:
        """Take the one attempt: the compare-and-set. Raises like `authorise` if it lost."""
        return await admission.claim(self._core, session)

    async def receive(self, attempt: Attempt, chunks: AsyncIterable[bytes]) -> StoredUpload:
        """Stream the body to the blob, verify it, publish it, commit it.

        Every failure ends the session in `failed` with no bytes, cancellation too. Once the
        body is whole, a cancellation is held back until the outcome is written down.

        Args:
            attempt: From `claim`.
            chunks: The body. It ends only when the server says that the body ended; anything
                else raises, and an error of our tree is passed on as it is.

        Raises:
            UploadBodyError: E7015, short, long or another digest.
            UploadBodyTimeoutError: E7016.
            UploadStorageFullError: E7017.
            UploadStorageError: E7018.
            UploadRevokedError: E7005, it was revoked meanwhile.
            UploadOutcomeUnknownError: E7011, the bytes are kept until it is known.
        """
        return await receiving.receive(self._core, attempt, chunks, hashed=self._hashed)

    async def outcome(self, session: UploadSession) -> StoredUpload:
        """Return the file of a session whose PUT was cancelled, if it was whole by then.

        Raises:
            UploadInterruptedError: E7027, it was not.
            UploadBusyError: E7019, the attempt had not begun, and is not used.
            UploadRevokedError: E7005.
            UploadOutcomeUnknownError: E7011, it could not be written down.
        """
        return await admission.outcome(self._core, session)

    async def get(self, principal: Principal, upload_id: str, wait_s: float = 0.0) -> UploadSession:
        """Return the caller's session; with `wait_s`, once it leaves pending and receiving.

        Raises:
            UploadNotFoundError: E7002, unknown or foreign.
        """
        session = await self._owned(principal, upload_id)
        with anyio.move_on_after(wait_s):
            while wait_s > 0 and session.state in (State.PENDING, State.RECEIVING):
                await self._core.signals.wait(upload_id, POLL_S)
                session = await self._owned(principal, upload_id)
        return session

    async def _owned(self, principal: Principal, upload_id: str) -> UploadSession:
        session = await admission.read(self._core, upload_id)
        if session is None or (session.credential_id, session.workspace) != (
            principal.credential_id,
            principal.workspace,
        ):
            raise UploadNotFoundError
        return session

    async def place(
        self,
        principal: Principal,
        upload_id: str,
        placer: Placer,
        path: str | None = None,
        sandbox_id: str | None = None,
    ) -> Placed:
        """Use the file once; a repeat returns the recorded result, whatever it asks for.

        A second call at the same time waits for the first and gets the same result or error.
        After a definite failure the next call begins the next attempt.

        Raises:
            UploadNotFoundError: E7002, unknown or foreign.
            UploadNotReadyError: E7001.
            UploadGoneError: E7003, expired or revoked.
            UploadFailedError: E7006.
            UploadCorruptError: E7020, the stored bytes lost their digest; nothing was written.
            UploadStorageError: E7018, the stored bytes are gone. Where the storage does not
                answer, it is E7019.
            UploadOutcomeUnknownError: E7011, repeat the call: it finds out first.
            AgentSandboxError: What `placer` or the charge hook raised.
        """
        with self._counted("place"), self.under_way():
            session = await self._owned(principal, upload_id)
            target = PlaceTarget(path, sandbox_id)
            return await placing.place(self._core, principal, session, placer, target, self._charge)

    async def revoke(self, principal: Principal, upload_id: str) -> UploadSession:
        """End the caller's session; a no-op at an end.

        A session that is receiving is revoked when its body is complete, and its bytes dropped.

        Raises:
            UploadNotFoundError: E7002, unknown or foreign.
            UploadPlacingError: E7008, its use has begun, also where an attempt has failed.
            UploadOutcomeUnknownError: E7011, its outcome cannot be told yet.
        """
        return await revoking.revoke(self._core, await self._owned(principal, upload_id))

    async def revoke_principal(self, credential_id: str, workspace: str | None = None) -> int:
        """Kill the unused secrets of a removed credential or scope; return how many.

        Args:
            credential_id: Of the credential connection that was removed.
            workspace: Only there, where its right to one workspace was removed.
        """
        return await revoking.revoke_credential(self._core, credential_id, workspace)

    async def stage_download(
        self, principal: Principal, filename: str, chunks: AsyncIterable[bytes], max_bytes: int
    ) -> tuple[UploadSession, str]:
        """Stage a bounded stream to a blob; return the session and its secret for one GET.

        The session's `received_bytes` and `received_sha256` are what to declare.

        Raises:
            UploadSizeError: E7014, the stream is longer than `max_bytes`.
            AgentSandboxError: As `create` and `receive`, and what `chunks` raised.
        """
        wanted = declared_download(self.config, filename, max_bytes)
        session, secret = await self._open(principal, "download", wanted)
        await self.receive(await self.claim(session), chunks)
        return await self._core.reread(session.upload_id), secret

    async def claim_download(self, session: UploadSession) -> Download:
        """Take the one GET of a download session that `authorise` returned.

        Raises like `authorise` if another request was first.
        """
        claimed = await claim_download(self._core, session)
        if claimed is None:
            admission.admit(await self._core.reread(session.upload_id))
            raise UploadNotReadyError(str(session.state))
        return claimed

    async def check(self) -> None:
        """Return if the database answers; for health checks."""
        await self._core.store.now_unix_ms()

    async def recover(self, *, abandon_all: bool = False) -> int:
        """Settle attempts that a crash left open; return how many.

        Args:
            abandon_all: Also those whose time is not over. Only for the sole user of a store,
                before it serves: another process's attempts would be cut off.
        """
        return (await upkeep.recover(self._core, abandon_all=abandon_all)).total()

    async def sweep(self) -> dict[str, int]:
        """Expire, reconcile, delete, remove; return counts by what was done.

        Harmless at any time and in any number. What fails is left for the next sweep.
        """
        return await upkeep.sweep(self._core)

    async def run_upkeep(self, every_s: float = 300.0) -> NoReturn:
        """Sweep at once and then for ever, at this interval; end it by cancelling.

        A sweep that fails is logged, and the next one makes up for it.
        """
        while True:
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001 - the next one may work: this task must live
                reason = getattr(error, "code", type(error).__name__)
                _log.warning("the sweep of uploads failed (%s)", reason)
            await anyio.sleep(every_s)

    def under_way(self) -> AbstractContextManager[object]:
        """Return a block that `drained` waits for."""
        return self._core.under_way.entered()

    async def drained(self, timeout_s: float = DRAIN_S) -> None:
        """Return once no request and no use is under way, or after that time.

        To be called when the server has stopped, before its store is closed: a request that was
        cancelled still writes down how it ended, and tells its sender.
        """
        with anyio.move_on_after(timeout_s, shield=True):
            await self._core.under_way.none()

    @contextlib.contextmanager
    def _counted(self, operation: str) -> Iterator[None]:
        try:
            yield
        except AgentSandboxError as error:
            self.refused(operation, error)
            raise

    def refused(self, operation: str, error: AgentSandboxError) -> None:
        """Count an error that an edge answers, for metrics: by its code alone."""
        self._core.audit.refused(operation, error.code)

    def tally(self) -> Tally:
        """Return what this process has counted, for metrics."""
        return self._core.audit.tally(self._core.receiving.count)

    async def states(self) -> Mapping[State, int]:
        """Return how many sessions there are in each state that is in force, on all replicas."""
        return await self._core.store.count_states()
