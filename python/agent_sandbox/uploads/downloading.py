"""The one GET of a download session. Its row takes the path of an upload that is used once."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack

import anyio

from agent_sandbox.errors import (
    UploadBusyError,
    UploadError,
    UploadOutcomeUnknownError,
    UploadStorageError,
)
from agent_sandbox.uploads import secrets
from agent_sandbox.uploads.blobs import BlobReader
from agent_sandbox.uploads.core import Core, verified
from agent_sandbox.uploads.models import UploadSession
from agent_sandbox.uploads.states import Phase, State


class Download:
    """A staged file on its way out. Iterate it to its end, and `aclose` it always.

    Attributes:
        size_bytes: To declare as Content-Length.
        sha256: To declare beside it.
        filename: For display.
    """

    def __init__(self, core: Core, session: UploadSession, reader: BlobReader) -> None:
        self.size_bytes = session.received_bytes or 0
        self.sha256 = session.received_sha256 or ""
        self.filename = session.filename
        self._core = core
        self._session = session
        self._reader = reader
        self._data: AsyncGenerator[bytes, None] = verified(reader, session)
        self._closed = False
        self._sent = 0

    def __aiter__(self) -> Download:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk; the last one only once the whole file has its digest."""
        chunk = await anext(self._data)
        self._sent += len(chunk)
        return chunk

    async def aclose(self) -> None:
        """End the download: the session is used up, and its blob is deleted."""
        if self._closed:
            return
        self._closed = True
        self._core.audit.moved("out", self._sent)
        with anyio.CancelScope(shield=True):
            await self._data.aclose()
            await self._reader.aclose()  # a generator that never began closes nothing
            try:
                done = await self._core.store.settle_place(
                    self._session.upload_id,
                    attempt=self._session.place_attempt or "",
                    phase=Phase.DONE,
                )
            except UploadError:
                return  # the sweep finds it
            if done is not None:
                self._core.tell(done, "download")
                await self._core.drop_blob(done)


async def claim_download(core: Core, session: UploadSession) -> Download | None:
    """Take the one GET; None if it is taken or over.

    Raises:
        UploadBusyError: E7019, the storage or the database does not answer; the GET is not used.
        UploadStorageError: E7018, the file is gone.
    """
    async with AsyncExitStack() as stack:
        # The file first: storage that is away for a moment must not use the GET up.
        try:
            reader = await core.blobs.open(session.object_key or "")
        except UploadStorageError:
            raise UploadBusyError from None
        if reader is not None:
            stack.push_async_callback(reader.aclose)
        claimed = await _claim(core, session)
        if claimed is None:
            return None
        core.tell(claimed, "download")
        if reader is None:
            raise UploadStorageError
        stack.pop_all()
        return Download(core, claimed, reader)


async def _claim(core: Core, session: UploadSession) -> UploadSession | None:
    token = secrets.new_id()
    try:
        return await core.store.claim_place(
            session.upload_id,
            attempt=token,
            target="{}",
            lease_ms=round(core.config.place_lease_s * 1_000),
        )
    except UploadOutcomeUnknownError:
        # The commit's answer was lost: the token in the row says whose attempt it is.
        found = await core.reread(session.upload_id)
    if found.place_attempt == token:
        return found
    if found.state is State.STORED:
        raise UploadBusyError
    return None
