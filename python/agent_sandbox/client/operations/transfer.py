"""Reading and writing files: `GET` and `POST /files`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from functools import partial

from pydantic import TypeAdapter

from agent_sandbox.client._answers import READ, WRITE, require_framing, require_identity
from agent_sandbox.client._calls import Call, Decoder, Head, Operation, Sink, exchange
from agent_sandbox.client._content import AsyncWritable, Content, ReadableFile
from agent_sandbox.client._sinks import Bytes, Count, Gunzipped, Nothing, Parsed
from agent_sandbox.client.local_files import LocalFile, LocalPath, local_goal
from agent_sandbox.client.operations._checks import checked_deadline, checked_max_bytes
from agent_sandbox.errors import (
    DeclarationError,
    TextEncodingError,
    TransferError,
    UnsupportedError,
    UploadTimeoutError,
)
from agent_sandbox.limits import TRANSFER_TIMEOUT_S
from agent_sandbox.models import WriteInfo
from agent_sandbox.paths import canonical_path
from agent_sandbox.wire import e2b

MAX_WRITTEN_BYTES = 65_536
"""Longest answer to a write."""


def read_bytes(
    path: str,
    max_bytes: int | None,
    deadline_s: float | None,
    *,
    streaming: bool = True,
    coding: str = "gzip",
) -> Operation[bytes]:
    """Describe a read of a whole file.

    Args:
        path: Remote path.
        max_bytes: Bound, or None for the ordinary unbounded read.
        deadline_s: Wall-clock bound; None is `TRANSFER_TIMEOUT_S` where there is a bound.
        streaming: Whether the provider streams; one that does not cannot keep a bound.
        coding: What an unbounded read accepts as Content-Encoding.
    """
    path, limit, deadline_s = (
        canonical_path(path),
        checked_max_bytes(max_bytes),
        checked_deadline(deadline_s),
    )
    if limit is None:
        return (
            yield from exchange(
                Call(
                    method="GET",
                    path="/files",
                    params={"path": path},
                    headers={"accept-encoding": coding},
                    accept=_whole,
                    deadline_s=deadline_s,
                )
            )
        )
    if not streaming:
        raise UnsupportedError

    def bounded(head: Head) -> Sink[bytes]:
        return Bytes(limit, _proved(head))

    return (
        yield from exchange(
            Call(
                method="GET",
                path="/files",
                params={"path": path},
                accept=bounded,
                deadline_s=deadline_s or TRANSFER_TIMEOUT_S,
            )
        )
    )


def read_text(
    path: str,
    max_bytes: int | None,
    deadline_s: float | None,
    *,
    streaming: bool = True,
    coding: str = "gzip",
) -> Operation[str]:
    """Describe a read of a file as strict UTF-8."""
    data = yield from read_bytes(path, max_bytes, deadline_s, streaming=streaming, coding=coding)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise TextEncodingError from None


def stream(
    path: str, max_bytes: int | None, deadline_s: float | None, *, streaming: bool = True
) -> Call[Decoder[bytes]]:
    """Return the call whose body is the file, chunk by chunk as it arrives."""
    path, limit = canonical_path(path), checked_max_bytes(max_bytes)
    deadline_s = checked_deadline(deadline_s)
    if not streaming:
        raise UnsupportedError

    def accept(head: Head) -> Decoder[bytes]:
        return _Chunks(limit, _proved(head))

    return Call(
        method="GET",
        path="/files",
        params={"path": path},
        accept=accept,
        deadline_s=deadline_s,
    )


def download(
    path: str,
    local: LocalPath,
    max_bytes: int | None,
    deadline_s: float | None,
    *,
    streaming: bool = True,
) -> Operation[int]:
    """Describe a read into a local file; its value is the number of bytes."""
    path, limit = canonical_path(path), checked_max_bytes(max_bytes)
    deadline_s = checked_deadline(deadline_s)
    if not streaming:
        raise UnsupportedError
    goal = local_goal(local)

    def to_disk(head: Head) -> Sink[int]:
        return LocalFile(goal, limit, _proved(head))

    return (
        yield from exchange(
            Call(
                method="GET",
                path="/files",
                params={"path": path},
                accept=to_disk,
                deadline_s=deadline_s,
            )
        )
    )


def write(path: str, data: AsyncWritable, deadline_s: float | None) -> Operation[WriteInfo]:
    """Describe a write of everything that `data` yields, sent once.

    A success counts only where everything was sent, and the service says so.
    """
    path, deadline_s = canonical_path(path), checked_deadline(deadline_s)
    content = Content(data)

    def written(head: Head) -> Sink[None]:
        WRITE.check(head, 200, 201, 204)
        if not content.exhausted:  # the answer came too early, and then the connection broke
            raise TransferError
        if head.status == 204:
            return Nothing()
        require_identity(head)
        return Parsed(MAX_WRITTEN_BYTES, partial(_check_written, content=content), TransferError)

    try:
        yield from exchange(
            Call(
                method="POST",
                path="/files",
                params={"path": path},
                headers={"content-type": "application/octet-stream"},
                content=content,
                accept=written,
                deadline_s=deadline_s,
                timeout_error=UploadTimeoutError,
            )
        )
    except DeclarationError:  # other bytes arrived than were sent; our caller declared nothing
        raise TransferError from None
    return WriteInfo(path=path, bytes_written=content.bytes_sent, sha256=content.hexdigest())


def upload(local: LocalPath, path: str, deadline_s: float | None) -> Operation[WriteInfo]:
    """Describe a write of a local regular file.

    Raises:
        OSError: The local file cannot be opened, or is no regular file.
    """
    path = canonical_path(path)
    with open(local, "rb", opener=_regular) as file:
        readable: ReadableFile = file
        return (yield from write(path, readable, deadline_s))


def _regular(path: str, flags: int) -> int:
    # Without O_NONBLOCK a FIFO would hold up its opener until somebody writes.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError("not a regular file")
    return descriptor


def _whole(head: Head) -> Sink[bytes]:
    READ.check(head, 200)
    codings = [coding for coding in head.all("content-encoding") if coding not in ("", "identity")]
    if not codings:
        return Bytes(None)
    if codings != ["gzip"]:  # nothing else is asked for, and layers of it are a bomb
        raise TransferError
    return Gunzipped()


def _proved(head: Head) -> int | None:
    READ.check(head, 200)
    require_identity(head)
    return require_framing(head)


_ANSWER = TypeAdapter(list[e2b.WrittenFile])


def _check_written(data: bytes, content: Content) -> None:
    """Check what a service says about a write: one file, of the size that was sent."""
    files = _ANSWER.validate_json(data)
    if len(files) != 1 or files[0].size not in (None, content.bytes_sent):
        raise TransferError


class _Chunks:
    """Hands out the bytes as they are, and counts them."""

    started = True

    def __init__(self, limit: int | None, declared: int | None) -> None:
        self._count = Count(limit, declared)

    def feed(self, chunk: bytes) -> Iterable[bytes]:
        self._count.add(chunk)
        return (chunk,) if chunk else ()

    def finish(self) -> None:
        self._count.end()
