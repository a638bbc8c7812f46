"""What a service says about files, checked before anybody acts on it.

A name goes into local paths and a size into buffers, so neither is taken on trust: a name is one
component, a path lies where the question pointed, a number is one that a file can have.
"""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic import Field

from agent_sandbox.errors import TransferError
from agent_sandbox.models import FileEvent, FileEventType, FileInfo, FileType
from agent_sandbox.wire import e2b

MAX_ENTRIES = 100_000
"""Most entries of one list; Express sends no more."""


class _Listing(e2b.ListDirResponse):
    entries: list[e2b.EntryInfo] = Field(default=[], max_length=MAX_ENTRIES)


def listed(data: bytes, *, path: str, depth: int) -> list[FileInfo]:
    """Return the entries of a `ListDir` answer.

    Raises:
        ValidationError: It is no such answer, or too long.
        TransferError: E4007: an entry is not under `path`, is deeper than `depth` levels, or is
            no entry that a file system can have.
    """
    base = "" if path == "/" else path
    return [_below(entry, base, depth) for entry in _Listing.model_validate_json(data).entries]


def single(data: bytes, *, path: str) -> FileInfo:
    """Return the entry of a `Stat` or `Move` answer, which must be the one at `path`.

    Raises:
        ValidationError: It is no such answer.
        TransferError: E4007: another entry, or none that a file system can have.
    """
    entry = e2b.EntryResponse.model_validate_json(data).entry
    if entry is None or entry.path != path:
        raise TransferError
    name = path.rpartition("/")[2]
    if entry.name != name and path != "/":  # services differ in what they call the root
        raise TransferError
    return _info(entry, name)


def _below(entry: e2b.EntryInfo, base: str, depth: int) -> FileInfo:
    if not entry.path.startswith(f"{base}/"):
        raise TransferError
    names = entry.path[len(base) + 1 :].split("/")
    if len(names) > depth or entry.name != names[-1] or not _are_names(names):
        raise TransferError
    return _info(entry, entry.name)


def _are_names(names: list[str]) -> bool:
    return not any(name in ("", ".", "..") or "\0" in name for name in names)


_TYPES = {
    e2b.FileType.FILE: FileType.FILE,
    e2b.FileType.DIRECTORY: FileType.DIRECTORY,
    e2b.FileType.SYMLINK: FileType.SYMLINK,
}


def _info(entry: e2b.EntryInfo, name: str) -> FileInfo:
    if not 0 <= entry.size < 1 << 63:
        raise TransferError
    kind = _TYPES.get(entry.type, FileType.OTHER)
    try:
        modified_at = in_utc(entry.modified_time or datetime.fromtimestamp(0, UTC))
    except OverflowError:
        raise TransferError from None
    return FileInfo(
        name=name,
        path=entry.path,
        type=FileType.SYMLINK if entry.is_symlink else kind,
        size_bytes=entry.size,
        mode=entry.mode & 0o7777,
        owner=entry.owner,
        group=entry.group,
        modified_at=modified_at,
        symlink_target=entry.symlink_target,
    )


def in_utc(time: datetime) -> datetime:
    """Return a time in UTC; one without a zone is meant so.

    Raises:
        OverflowError: It lies before the year 1 or after 9999 there.
    """
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


_EVENTS = {
    e2b.EventType.CREATE: FileEventType.CREATE,
    e2b.EventType.WRITE: FileEventType.WRITE,
    e2b.EventType.REMOVE: FileEventType.REMOVE,
    e2b.EventType.RENAME: FileEventType.RENAME,
    e2b.EventType.CHMOD: FileEventType.CHMOD,
}


def event(change: e2b.FilesystemEvent) -> FileEvent | None:
    """Return a change under a watch, None where it is of a kind that is not known here.

    Raises:
        TransferError: E4007: its name leads out of the watched directory.
    """
    if change.type not in _EVENTS:
        return None
    # Some services call the watched directory itself "." or "".
    if change.name not in ("", ".") and not _are_names(change.name.split("/")):
        raise TransferError
    return FileEvent(name=change.name, type=_EVENTS[change.type])
