"""Blobs in an S3-compatible bucket, through obstore."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import obstore
from anyio.to_thread import run_sync
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.exceptions import UnauthenticatedError as S3UnauthenticatedError
from obstore.store import S3Store

from agent_sandbox.errors import UploadOutcomeUnknownError, UploadStorageError
from agent_sandbox.uploads.blobs import READ_BYTES, Parts
from agent_sandbox.uploads.secrets import KeepsSecrets

_log = logging.getLogger(__name__)

PART_BYTES = 5 * 1024 * 1024
"""Size of a part, the smallest that S3 takes; a file up to it is one conditional PUT."""

_READING = timedelta(days=1)
"""Time for one whole GET: the use of a file is bounded by who reads it, not by the bucket."""

_KEY = re.compile(r"[0-9a-f]+/[0-9a-f]+")
"""What our keys look like: a bucket may hold other things below the same prefix."""

_DEFINITE = (AlreadyExistsError, PermissionDeniedError, S3UnauthenticatedError)
_FAULTS = (BaseError, OSError, ValueError)


def _note(error: BaseException) -> None:
    # Only the class: the text of an S3 error holds URLs and the server's answer.
    _log.warning("uploads bucket: %s", type(error).__name__)


class SmallWriter:
    """An object of one part: collected, then put with `If-None-Match: *`."""

    def __init__(self, store: S3Store, key: str) -> None:
        self._store = store
        self._key = key
        self._chunks: list[bytes] = []

    async def write(self, parts: Parts, also: Callable[[], None] | None = None) -> None:
        """Append some chunks."""
        if also is not None:
            await run_sync(also)
        self._chunks.extend(map(bytes, parts))

    async def commit(self) -> None:
        """Put the object, unless there is one of this key."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        with anyio.CancelScope(shield=True):
            try:
                await obstore.put_async(
                    self._store, self._key, body, mode="create", use_multipart=False
                )
            except _DEFINITE as error:
                _note(error)
                # A repeat inside obstore meets its own first try, whose answer was lost.
                if isinstance(error, AlreadyExistsError):
                    raise UploadOutcomeUnknownError("receiving") from None
                raise UploadStorageError from None
            except _FAULTS as error:
                _note(error)
                raise UploadOutcomeUnknownError("receiving") from None

    async def abort(self) -> None:
        """Drop what was collected."""
        self._chunks.clear()


class PartsWriter:
    """A larger object: a multipart upload that takes parts as they come.

    The key is fresh for every attempt, so nothing can stand there; a multipart upload cannot be
    made conditional through obstore.
    """

    def __init__(self, store: S3Store, key: str) -> None:
        self._store = store
        self._key = key
        self._parts: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._task: asyncio.Task[Any] | None = None
        self._pending = bytearray()
        self._aborted = False

    async def write(self, parts: Parts, also: Callable[[], None] | None = None) -> None:
        """Append some chunks; waits while a part is under way."""
        if also is not None:
            await run_sync(also)
        for chunk in parts:
            self._pending += chunk
        while len(self._pending) >= PART_BYTES:
            part = bytes(memoryview(self._pending)[:PART_BYTES])
            del self._pending[:PART_BYTES]
            await self._send(part)

    async def commit(self) -> None:
        """Send the rest and complete the upload."""
        with anyio.CancelScope(shield=True):
            if self._pending:
                rest, self._pending = bytes(self._pending), bytearray()
                await self._send(rest)
            await self._send(None)
            await self._ended()

    async def abort(self) -> None:
        """End the upload without an object; obstore drops its parts."""
        self._aborted = True
        self._pending.clear()
        if self._task is None:
            return
        with anyio.CancelScope(shield=True):
            while not self._task.done():
                with contextlib.suppress(asyncio.QueueEmpty):
                    self._parts.get_nowait()
                with contextlib.suppress(asyncio.QueueFull):
                    self._parts.put_nowait(None)
                await asyncio.wait([self._task], timeout=0.05)
            if not self._task.cancelled():
                self._task.exception()  # looked at, so that nothing logs it with its text

    async def _send(self, part: bytes | None) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._upload())
        put = asyncio.ensure_future(self._parts.put(part))
        try:
            await asyncio.wait([put, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            put.cancel()
        if self._task.done():  # before the end of the body: it can only have failed
            await self._ended()

    async def _ended(self) -> None:
        assert self._task is not None  # noqa: S101 - set by every caller
        try:
            await self._task
        except _DEFINITE as error:
            _note(error)
            raise UploadStorageError from None
        except _FAULTS as error:
            _note(error)
            raise UploadOutcomeUnknownError("receiving") from None

    async def _upload(self) -> None:
        await obstore.put_async(
            self._store,
            self._key,
            self._stream(),
            use_multipart=True,
            chunk_size=PART_BYTES,
            max_concurrency=1,
        )

    async def _stream(self) -> AsyncIterator[bytes]:
        while (part := await self._parts.get()) is not None and not self._aborted:
            yield part
        if self._aborted:
            raise ValueError("aborted")


class S3Reader:
    """The body of one GET."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.size_bytes: int = result.meta["size"]

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the object's bytes."""
        try:
            async for buffer in self._result.stream(min_chunk_size=READ_BYTES):
                view = memoryview(buffer)
                for start in range(0, len(view), READ_BYTES):
                    yield bytes(view[start : start + READ_BYTES])
        except _FAULTS as error:
            _note(error)
            raise UploadStorageError from None

    async def aclose(self) -> None:
        """Let go of the answer, which closes its connection."""
        self._result = None


class S3Blobs(KeepsSecrets):
    """Objects in a bucket that all replicas share.

    The bucket needs a lifecycle rule that drops incomplete multipart uploads after a day: a
    process that is killed cannot abort its own, and the sweep cannot see them.

    Args:
        bucket: Its name.
        prefix: Put before every key.
        request_timeout_s: Time for one request to the bucket; while an object is read, time for
            each piece, however long the reader takes in between.
        retry_timeout_s: Time for one operation with its retries.
        **settings: Anything else that `obstore.store.S3Store` takes (`endpoint`,
            `access_key_id`, `region`, ...); without credentials, the AWS environment.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "uploads",
        request_timeout_s: float = 20.0,
        retry_timeout_s: float = 30.0,
        max_retries: int = 4,
        **settings: Any,
    ) -> None:
        request_timeout = timedelta(seconds=request_timeout_s)
        given: Any = settings.pop("client_options", {})

        def store(**timeouts: timedelta) -> S3Store:
            options: Any = {
                "connect_timeout": timedelta(seconds=min(5.0, request_timeout_s)),
                **timeouts,
                **given,
            }
            return S3Store(
                bucket,
                prefix=prefix,
                client_options=options,
                retry_config={
                    "max_retries": max_retries,
                    "retry_timeout": timedelta(seconds=retry_timeout_s),
                },
                **settings,
            )

        self._store = store(timeout=request_timeout)
        # A timeout of the whole request would count the pauses of a slow reader, too.
        self._reading = store(timeout=_READING, read_timeout=request_timeout)

    def __repr__(self) -> str:
        return "S3Blobs(...)"  # the store's own repr is not ours to vouch for

    async def begin(self, key: str, size_bytes: int) -> SmallWriter | PartsWriter:
        """Start an object; `size_bytes` chooses between one part and several."""
        kind = SmallWriter if size_bytes <= PART_BYTES else PartsWriter
        return kind(self._store, key)

    async def open(self, key: str) -> S3Reader | None:
        """Open an object, None if there is none."""
        try:
            return S3Reader(await obstore.get_async(self._reading, key))
        except FileNotFoundError:
            return None
        except _FAULTS as error:
            _note(error)
            raise UploadStorageError from None

    async def head(self, key: str) -> int | None:
        """Return an object's size, None if there is none."""
        try:
            return (await obstore.head_async(self._store, key))["size"]
        except FileNotFoundError:
            return None
        except _FAULTS as error:
            _note(error)
            raise UploadStorageError from None

    async def delete(self, key: str) -> None:
        """Delete an object; a missing one is fine."""
        try:
            await obstore.delete_async(self._store, key)
        except FileNotFoundError:
            return
        except _FAULTS as error:
            _note(error)
            raise UploadStorageError from None

    async def list_orphans(self, older_than_s: float) -> AsyncIterator[str]:
        """Yield the keys of all objects at least that old, and of nobody else's."""
        limit = datetime.now(UTC) - timedelta(seconds=older_than_s)
        try:
            async for page in obstore.list(self._store, chunk_size=1_000):
                for meta in page:
                    if meta["last_modified"] <= limit and _KEY.fullmatch(meta["path"]):
                        yield meta["path"]
        except _FAULTS as error:
            _note(error)
            raise UploadStorageError from None
