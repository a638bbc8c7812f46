"""What a write sends: counted and hashed once, while it is sent."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import AsyncIterable, AsyncIterator, Generator, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import anyio.to_thread

from agent_sandbox.bytestream import Sha256
from agent_sandbox.errors import TextEncodingError

READ_BYTES = 262_144
"""Bytes that are read from a local file at once."""

HASH_INLINE_BYTES = 4_194_304
"""Content above this is hashed in a worker thread, so that an event loop is not held up."""

Octets: TypeAlias = bytes | bytearray | memoryview


@runtime_checkable
class ReadableFile(Protocol):
    """A file opened for reading, in binary or (UTF-8) text mode."""

    def read(self, size: int, /) -> bytes | str: ...


Writable: TypeAlias = str | Octets | ReadableFile | Iterable[Octets]
"""What the blocking `write` takes."""

AsyncWritable: TypeAlias = Writable | AsyncIterable[Octets]
"""What the async `write` takes."""


class Content:
    """The body of one write.

    Attributes:
        bytes_sent: Count so far.
        exhausted: Whether the HTTP client has taken everything and asked for more. One whose
            connection breaks asks no more, though it may go on to read an answer.
        failure: What the caller's own source raised; it is the caller's error, not the wire's.
    """

    def __init__(self, data: AsyncWritable) -> None:
        self._source: bytes | ReadableFile | Iterable[Octets] | AsyncIterable[Octets]
        if isinstance(data, str):
            self._source = utf8(data)
        elif isinstance(data, bytearray | memoryview):
            self._source = bytes(data)  # mutable: what is hashed is what is sent
        elif isinstance(data, bytes | ReadableFile | Iterable | AsyncIterable):
            self._source = cast("bytes | ReadableFile | Iterable[Octets]", data)
        else:
            raise TypeError("data must be bytes, str, a file, or an iterator of bytes")
        self._sha256 = Sha256()
        self.bytes_sent = 0
        self.exhausted = False
        self.failure: BaseException | None = None

    def hexdigest(self) -> str:
        """Return the sha256 of what was sent."""
        return self._sha256.hexdigest()

    def for_blocking(self) -> Iterable[bytes]:
        """Return the body for a blocking client.

        Raises:
            TypeError: The source is an async iterator.
        """
        source = self._source
        if isinstance(source, bytes):
            return _Whole(self, source)
        if isinstance(source, ReadableFile):
            return self._watched(_file_chunks(source))
        if isinstance(source, Iterable):
            return self._watched(map(checked, source))
        raise TypeError("an async iterator needs the async client")

    def for_async(self) -> AsyncIterable[bytes]:
        """Return the body for an async client; files are read in worker threads."""
        source = self._source
        return _AsyncWhole(self, source) if isinstance(source, bytes) else self._awaited(source)

    @property
    def headers(self) -> Mapping[str, str]:
        """What is known of the body before it is sent."""
        source = self._source
        return {"content-length": str(len(source))} if isinstance(source, bytes) else {}

    def know_whole(self, data: bytes) -> None:
        """Count and hash bytes that are the whole body, however often they are sent."""
        if not self.bytes_sent:
            self._seen(data)

    def _seen(self, chunk: Octets | str) -> bytes:
        if isinstance(chunk, str):
            chunk = utf8(chunk)
        elif not isinstance(chunk, bytes):
            chunk = bytes(chunk)
        self._sha256.update(chunk)
        self.bytes_sent += len(chunk)
        return chunk

    def _watched(self, chunks: Iterable[Octets | str]) -> Iterator[bytes]:
        with self._blaming_the_caller():
            for chunk in chunks:
                if sent := self._seen(chunk):
                    yield sent
            self.exhausted = True

    async def _awaited(
        self, source: ReadableFile | Iterable[Octets] | AsyncIterable[Octets]
    ) -> AsyncIterator[bytes]:
        with self._blaming_the_caller():
            if isinstance(source, AsyncIterable):
                async for chunk in source:
                    if sent := self._seen(checked(chunk)):
                        yield sent
            elif isinstance(source, ReadableFile):
                read = partial(source.read, READ_BYTES)
                # Abandoned on cancellation: a pipe may never give anything, and time goes on.
                while piece := _piece(await anyio.to_thread.run_sync(read, abandon_on_cancel=True)):
                    yield self._seen(piece)
            else:
                for chunk in source:
                    if sent := self._seen(checked(chunk)):
                        yield sent
            self.exhausted = True

    @contextlib.contextmanager
    def _blaming_the_caller(self) -> Generator[None]:
        try:
            yield
        except Exception as error:
            self.failure = error
            raise


class _Whole(Iterable[bytes]):
    """Bytes as a body; they can be sent again, as an HTTP client's login does.

    They are hashed when the client asks for more: what it was given is then with the kernel or
    with the peer, which work on it meanwhile.
    """

    def __init__(self, content: Content, data: bytes) -> None:
        self._content, self._data = content, data

    def __iter__(self) -> Iterator[bytes]:
        self._content.exhausted = False
        if self._data:
            yield self._data
            self._content.know_whole(self._data)
        self._content.exhausted = True


class _AsyncWhole(AsyncIterable[bytes]):
    """The async twin of `_Whole`."""

    def __init__(self, content: Content, data: bytes) -> None:
        self._content, self._data = content, data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        self._content.exhausted = False
        if self._data:
            yield self._data
            if len(self._data) > HASH_INLINE_BYTES:
                await anyio.to_thread.run_sync(self._content.know_whole, self._data)
            else:
                self._content.know_whole(self._data)
        self._content.exhausted = True


def utf8(text: str) -> bytes:
    """Return text as UTF-8.

    Raises:
        TextEncodingError: E2004, for a lone surrogate.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise TextEncodingError from None


def checked(chunk: Octets) -> Octets:
    """Return the chunk of a caller's iterator.

    Raises:
        TypeError: It is not bytes-like: an int would become zeros, a list its items.
    """
    if not isinstance(chunk, bytes | bytearray | memoryview):
        raise TypeError("data must be made of bytes")
    return chunk


def _file_chunks(file: ReadableFile) -> Iterator[Octets | str]:
    while piece := _piece(file.read(READ_BYTES)):
        yield piece


def _piece(read: Any) -> Octets | str:
    """Return what a file's `read` gave.

    Raises:
        BlockingIOError: Nothing is there now; that is not the end.
        TypeError: It is neither bytes-like nor text.
    """
    if read is None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return read if isinstance(read, str) else checked(read)
