"""What the use cases share: the parts, the signals between them, and dropping bytes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import anyio

from agent_sandbox.bytestream import Sha256
from agent_sandbox.errors import (
    UploadConflictError,
    UploadCorruptError,
    UploadError,
    UploadExpiredError,
    UploadFailedError,
    UploadNotFoundError,
    UploadNotReadyError,
    UploadOutcomeUnknownError,
    UploadRevokedError,
    UploadStorageError,
)
from agent_sandbox.uploads.audit import Audit
from agent_sandbox.uploads.blobs import BlobReader, BlobStore
from agent_sandbox.uploads.models import StoredUpload, UploadsConfig, UploadSession
from agent_sandbox.uploads.slabs import Slabs
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store import UploadStore

_log = logging.getLogger(__name__)

POLL_S = 0.5
"""How often a waiting caller looks whether another replica changed its session."""


class Signals:
    """Wakes whoever waits for a session in this process."""

    def __init__(self) -> None:
        self._events: dict[str, anyio.Event] = {}

    def changed(self, upload_id: str) -> None:
        """Wake all who wait for this session."""
        if event := self._events.pop(upload_id, None):
            event.set()

    async def wait(self, upload_id: str, seconds: float) -> None:
        """Return when the session changed here, or after that time."""
        event = self._events.setdefault(upload_id, anyio.Event())
        with anyio.move_on_after(seconds):
            await event.wait()
        if self._events.get(upload_id) is event:
            del self._events[upload_id]
            event.set()  # others who wait on it look again, instead of missing the next change


class Active:
    """Counts what runs at the moment."""

    def __init__(self) -> None:
        self.count = 0
        self._ended: anyio.Event | None = None

    async def none(self) -> None:
        """Return once nothing runs."""
        while self.count:
            self._ended = self._ended or anyio.Event()
            await self._ended.wait()

    @contextlib.contextmanager
    def entered(self) -> Iterator[Active]:
        """Count one more while the block runs."""
        self.count += 1
        try:
            yield self
        finally:
            self.count -= 1
            if not self.count and self._ended is not None:
                self._ended.set()
                self._ended = None


@dataclass(frozen=True, slots=True)
class Core:
    """The parts of one service."""

    config: UploadsConfig
    store: UploadStore
    blobs: BlobStore
    audit: Audit
    signals: Signals = field(default_factory=Signals)
    receiving: Active = field(default_factory=Active)
    under_way: Active = field(default_factory=Active)
    slabs: Slabs = field(default_factory=Slabs)

    def tell(self, session: UploadSession, action: str, code: str | None = None) -> None:
        """Record a change and wake who waits for it."""
        self.audit.tell(session.upload_id, action, session.state, code)
        self.signals.changed(session.upload_id)

    async def drop_blob(self, session: UploadSession) -> bool:
        """Delete an ended session's bytes now, if that works; else the sweep does.

        The row forgets its key only after the bytes are surely gone.
        """
        if session.object_key is None:
            return True
        try:
            await self.blobs.delete(session.object_key)
            await self.store.forget_blob(session.upload_id, session.object_key)
        except UploadError as error:
            _log.warning("upload %s keeps its bytes (%s)", session.upload_id, error.code)
            return False
        return True

    async def reread(self, upload_id: str) -> UploadSession:
        """Return a session that is known to have existed."""
        session = await self.store.read(upload_id)
        if session is None:
            raise UploadNotFoundError
        return session

    async def reconcile(self, session: UploadSession) -> UploadSession:
        """Find out how the PUT of an abandoned or unknown session ended, and write it down.

        The proof is the size and the digest that were recorded before the blob was published.
        Where the storage does not answer, the session is `unknown` and its bytes are kept.
        """
        to = State.FAILED  # no digest recorded: nothing was published
        if session.received_sha256 is not None:
            try:
                to = State.STORED if await self._is_whole(session) else State.FAILED
            except UploadStorageError:
                to = State.UNKNOWN
        reason = {
            State.FAILED: UploadFailedError.code,
            State.UNKNOWN: UploadOutcomeUnknownError.code,
        }.get(to)
        found = await self.store.finish_put(
            session.upload_id, attempt=session.attempt or "", to=to, reason=reason
        )
        if found is None:  # another replica was quicker
            return await self.reread(session.upload_id)
        self.tell(found, "reconcile", reason)
        if found.state in (State.FAILED, State.REVOKED):
            await self.drop_blob(found)
        return found

    async def _is_whole(self, session: UploadSession) -> bool:
        reader = await self.blobs.open(session.object_key or "")
        if reader is None:
            return False
        try:
            async for _ in verified(reader, session):
                pass
        except UploadCorruptError:
            return False
        return True


async def verified(reader: BlobReader, session: UploadSession) -> AsyncGenerator[bytes, None]:
    """Yield a stored file's bytes, the last of them only once the whole has its digest.

    Closes the reader at its end.

    Raises:
        UploadCorruptError: E7020, another size or digest than recorded.
        UploadStorageError: E7018, reading failed.
    """
    digest = Sha256()
    count = 0
    last: bytes | None = None
    try:
        async for chunk in reader:
            digest.update(chunk)
            count += len(chunk)
            if count > (session.received_bytes or 0):
                raise UploadCorruptError
            if last is not None:
                yield last
            last = chunk
        if count != session.received_bytes or digest.hexdigest() != session.received_sha256:
            raise UploadCorruptError
        if last is not None:
            yield last
    finally:
        with anyio.CancelScope(shield=True):
            await reader.aclose()


def stored_upload(session: UploadSession) -> StoredUpload:
    """Return what is known of a whole file."""
    return StoredUpload(
        upload_id=session.upload_id,
        state=session.state,
        size_bytes=session.received_bytes or 0,
        sha256=session.received_sha256 or "",
        filename=session.filename,
    )


def raise_ended(session: UploadSession) -> NoReturn:
    """Raise what a session without usable bytes answers: each state its own text."""
    match session.state:
        case State.EXPIRED:
            raise UploadExpiredError
        case State.REVOKED:
            raise UploadRevokedError
        case State.FAILED:
            raise UploadFailedError
        case State.PENDING | State.RECEIVING:
            raise UploadNotReadyError(str(session.state))
        case State.UNKNOWN:
            raise UploadOutcomeUnknownError(str(session.state))
        case _:
            raise UploadConflictError(str(session.state))
