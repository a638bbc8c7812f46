"""Looking at and changing the file tree: the `filesystem.Filesystem` RPCs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from agent_sandbox.client._answers import READ, STREAM_END, named_error, require_identity
from agent_sandbox.client._calls import Call, Decoder, Head, Operation, Sink, exchange
from agent_sandbox.client._sinks import Bounded
from agent_sandbox.errors import (
    AgentSandboxError,
    ArgumentError,
    FileConflictError,
    FileMissingError,
    SizeLimitError,
    TransferError,
)
from agent_sandbox.models import FileEvent, FileEventType, FileInfo, FileType
from agent_sandbox.paths import canonical_path
from agent_sandbox.wire import connect, e2b, headers

M = TypeVar("M", bound=BaseModel)

MAX_ANSWER_BYTES = 67_108_864
"""Longest answer of one call: a list of some hundred thousand entries."""


def list_dir(path: str, depth: int) -> Operation[list[FileInfo]]:
    """Describe the listing of a directory."""
    path = canonical_path(path, directory=True)
    if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= 0xFFFF_FFFF:
        raise ArgumentError
    request = e2b.ListDirRequest(path=path, depth=depth)
    answer = yield from _unary("ListDir", request.to_json(), e2b.ListDirResponse)
    return [_info(entry) for entry in answer.entries]


def stat(path: str) -> Operation[FileInfo]:
    """Describe a look at one entry."""
    request = e2b.StatRequest(path=canonical_path(path, directory=True))
    return _entry((yield from _unary("Stat", request.to_json(), e2b.EntryResponse)))


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
        yield from _unary("MakeDir", request.to_json(), e2b.EntryResponse)
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
    return _entry((yield from _unary("Move", request.to_json(), e2b.EntryResponse)))


def remove(path: str) -> Operation[None]:
    """Describe the removal of an entry and everything under it."""
    request = e2b.RemoveRequest(path=canonical_path(path, directory=True))
    yield from _unary("Remove", request.to_json(), e2b.Empty)


def watch(path: str, *, recursive: bool) -> Call[Decoder[FileEvent]]:
    """Return the call whose body is a stream of changes under a directory."""
    path = canonical_path(path, directory=True)
    request = e2b.WatchDirRequest(path=path, recursive=recursive)
    return Call(
        method="POST",
        path=f"/{e2b.FILESYSTEM_SERVICE}/WatchDir",
        headers=_headers(connect.STREAM_TYPE)
        | {"connect-accept-encoding": "identity", headers.KEEPALIVE_PING_INTERVAL: "50"},
        content=connect.encode_envelope(request.to_json()),
        accept=_events,
        deadline_s=None,
    )


def _unary(method: str, body: bytes, answer: type[M]) -> Operation[M]:
    def accept(head: Head) -> Sink[bytes]:
        READ.check(head, 200)
        require_identity(head)
        return Bounded(MAX_ANSWER_BYTES, over=_too_long)

    data = yield from exchange(
        Call(
            method="POST",
            path=f"/{e2b.FILESYSTEM_SERVICE}/{method}",
            headers=_headers(connect.UNARY_TYPE),
            content=body,
            accept=accept,
        )
    )
    try:
        return answer.model_validate_json(data)
    except ValidationError:
        raise TransferError from None


def _headers(content_type: str) -> dict[str, str]:
    return {
        "content-type": content_type,
        headers.CONNECT_PROTOCOL_VERSION: connect.PROTOCOL_VERSION,
    }


def _too_long(limit: int) -> AgentSandboxError:
    return TransferError()


def _entry(answer: e2b.EntryResponse) -> FileInfo:
    if answer.entry is None:
        raise TransferError
    return _info(answer.entry)


_TYPES = {
    e2b.FileType.FILE: FileType.FILE,
    e2b.FileType.DIRECTORY: FileType.DIRECTORY,
    e2b.FileType.SYMLINK: FileType.SYMLINK,
}


def _info(entry: e2b.EntryInfo) -> FileInfo:
    kind = _TYPES.get(entry.type, FileType.OTHER)
    return FileInfo(
        name=entry.name,
        path=entry.path,
        type=FileType.SYMLINK if entry.is_symlink else kind,
        size_bytes=entry.size,
        mode=entry.mode & 0o7777,
        owner=entry.owner,
        group=entry.group,
        modified_at=entry.modified_time or datetime.fromtimestamp(0, UTC),
        symlink_target=entry.symlink_target,
    )


_EVENTS = {
    e2b.EventType.CREATE: FileEventType.CREATE,
    e2b.EventType.WRITE: FileEventType.WRITE,
    e2b.EventType.REMOVE: FileEventType.REMOVE,
    e2b.EventType.RENAME: FileEventType.RENAME,
    e2b.EventType.CHMOD: FileEventType.CHMOD,
}


def _events(head: Head) -> Decoder[FileEvent]:
    READ.check(head, 200)
    require_identity(head)
    return _Events(named_error(head))


class _Events:
    """Turns a stream of envelopes into changes; a watch has no good end but its closing.

    Args:
        named: The error that the head names, which counts if the stream then ends with one.
    """

    def __init__(self, named: type[AgentSandboxError] | None) -> None:
        self._named = named
        self.started = False
        self._envelopes = connect.EnvelopeDecoder(broken=TransferError)

    def feed(self, chunk: bytes) -> Sequence[FileEvent]:
        events: list[FileEvent] = []
        try:
            envelopes = self._envelopes.feed(chunk)
        except SizeLimitError:
            raise TransferError from None
        for envelope in envelopes:
            if envelope.end:
                if error := self._envelopes.end_error(envelope):
                    raise self._named or STREAM_END.get(error.connect_code, TransferError)
                continue
            try:
                message = e2b.WatchDirResponse.model_validate_json(envelope.data)
            except ValidationError:
                raise TransferError from None
            self.started = True
            change = message.filesystem
            if change is not None and change.type in _EVENTS:
                events.append(FileEvent(name=change.name, type=_EVENTS[change.type]))
        return events

    def finish(self) -> None:
        self._envelopes.finish()
