"""Looking at and changing the file tree: the `filesystem.Filesystem` RPCs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol, TypeVar

from pydantic import ValidationError

from agent_sandbox.client._answers import READ, STREAM_END, named_error, require_identity
from agent_sandbox.client._calls import Call, Decoder, Head, Operation, Sink, exchange
from agent_sandbox.client._sinks import Parsed
from agent_sandbox.client.operations import _entries
from agent_sandbox.client.operations._rpc import check_end, each_envelope, rpc_headers
from agent_sandbox.errors import (
    AgentSandboxError,
    ArgumentError,
    FileConflictError,
    FileMissingError,
    SizeLimitError,
    TransferError,
    WatchLimitError,
)
from agent_sandbox.models import FileEvent, FileInfo, FileType
from agent_sandbox.paths import canonical_path
from agent_sandbox.wire import connect, e2b, headers

T = TypeVar("T")

MAX_LISTING_BYTES = 67_108_864
"""Longest list of a directory (64 MiB): more than Express sends."""


def list_dir(path: str, depth: int) -> Operation[list[FileInfo]]:
    """Describe the listing of a directory."""
    path = canonical_path(path, directory=True)
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= 0xFFFF_FFFF:
        raise ArgumentError
    request = e2b.ListDirRequest(path=path, depth=depth)
    parse = partial(_entries.listed, path=path, depth=depth)
    return (yield from _unary("ListDir", request, parse, MAX_LISTING_BYTES))


def stat(path: str) -> Operation[FileInfo]:
    """Describe a look at one entry."""
    path = canonical_path(path, directory=True)
    return (
        yield from _unary("Stat", e2b.StatRequest(path=path), partial(_entries.single, path=path))
    )


def exists(path: str) -> Operation[bool]:
    """Describe the question whether a path names anything."""
    try:
        yield from stat(path)
    except FileMissingError:
        return False
    return True


def make_dir(path: str) -> Operation[bool]:
    """Describe the making of a directory; its value is False where it stood already."""
    request = e2b.MakeDirRequest(path=canonical_path(path, directory=True))
    try:
        yield from _unary("MakeDir", request, e2b.EntryResponse.model_validate_json)
    except FileConflictError:
        found = yield from stat(path)
        if found.type is FileType.DIRECTORY:
            return False
        raise
    return True


def rename(old_path: str, new_path: str) -> Operation[FileInfo]:
    """Describe a move within the sandbox."""
    request = e2b.MoveRequest(
        source=canonical_path(old_path, directory=True),
        destination=canonical_path(new_path, directory=True),
    )
    parse = partial(_entries.single, path=request.destination)
    return (yield from _unary("Move", request, parse))


def remove(path: str) -> Operation[None]:
    """Describe the removal of an entry and everything under it."""
    request = e2b.RemoveRequest(path=canonical_path(path, directory=True))
    yield from _unary("Remove", request, e2b.Empty.model_validate_json)


def watch(path: str, *, recursive: bool) -> Call[Decoder[FileEvent]]:
    """Return the call whose body is a stream of changes under a directory."""
    path = canonical_path(path, directory=True)
    request = e2b.WatchDirRequest(path=path, recursive=recursive)
    return Call(
        method="POST",
        path=f"/{e2b.FILESYSTEM_SERVICE}/WatchDir",
        headers=rpc_headers(connect.STREAM_TYPE)
        | {"connect-accept-encoding": "identity", headers.KEEPALIVE_PING_INTERVAL: "50"},
        content=connect.encode_envelope(request.to_json()),
        accept=_events,
        deadline_s=None,
        endless=True,
    )


class _Request(Protocol):
    def to_json(self) -> bytes: ...


def _unary(
    method: str,
    request: _Request,
    parse: Callable[[bytes], T],
    limit: int = connect.MAX_MESSAGE_BYTES,
) -> Operation[T]:
    def accept(head: Head) -> Sink[T]:
        if head.status == 413:  # the answer would be too large, not the disk too small
            raise SizeLimitError(limit)
        READ.check(head, 200)
        require_identity(head)
        return Parsed(limit, parse, TransferError)

    return (
        yield from exchange(
            Call(
                method="POST",
                path=f"/{e2b.FILESYSTEM_SERVICE}/{method}",
                headers=rpc_headers(connect.UNARY_TYPE),
                content=request.to_json(),
                accept=accept,
            )
        )
    )


def _events(head: Head) -> Decoder[FileEvent]:
    READ.check(head, 200)
    require_identity(head)
    return _Events(named_error(head))


_WATCH_END = STREAM_END | {
    # Not a full disk, as elsewhere: a watch stores nothing.
    connect.ConnectCode.RESOURCE_EXHAUSTED: WatchLimitError
}


class _Events:
    """Turns a stream of envelopes into changes; a watch has no good end but its closing.

    Args:
        named: The error that the head names, which counts if the stream then ends with one.
    """

    def __init__(self, named: type[AgentSandboxError] | None) -> None:
        self._named = named
        self.started = False
        self._envelopes = connect.EnvelopeDecoder(broken=TransferError)

    def feed(self, chunk: bytes) -> Iterator[FileEvent]:
        for envelope in each_envelope(self._envelopes, chunk):
            if envelope.end:
                check_end(self._envelopes, envelope, self._named, _WATCH_END)
                continue
            try:
                message = e2b.WatchDirResponse.model_validate_json(envelope.data)
            except ValidationError:
                raise TransferError from None
            self.started = True
            if message.filesystem and (change := _entries.event(message.filesystem)):
                yield change

    def finish(self) -> None:
        self._envelopes.finish()
