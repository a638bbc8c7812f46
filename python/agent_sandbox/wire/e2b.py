"""Messages of the E2B-compatible wire: control plane, file transfer, `filesystem.Filesystem`.

Field names are E2B's. Input is read liberally: unknown fields are ignored, `null` counts as absent,
and protobuf JSON may spell a field in either case and a 64-bit number as text. Output is canonical
protobuf JSON: camel case, default values left out, 64-bit numbers as text. `to_json` writes, the
class method `model_validate_json` of pydantic reads.
"""

from __future__ import annotations

import enum
import re
from datetime import datetime
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    model_validator,
)
from pydantic.alias_generators import to_camel

ENVD_VERSION = "0.6.4"
"""The version that Express reports; E2B's clients choose their features by it."""

FILESYSTEM_SERVICE = "filesystem.Filesystem"
"""First path segment of the file system RPCs."""


def _rest_name(name: str) -> str:
    """Return E2B's spelling of a control-plane field: `templateID`, `memoryMB`, `envVars`."""
    if name == "allow_internet_access":  # the one field that E2B spells in snake case
        return name
    return re.sub("Id$", "ID", re.sub("Mb$", "MB", to_camel(name)))


class _Message(BaseModel):
    # A generator instead of an alias for each field: type checkers then know the Python names.
    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        alias_generator=_rest_name,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return {name: value for name, value in data.items() if value is not None}
        return data

    def to_json(self) -> bytes:
        """Return the message as JSON in UTF-8."""
        return self.model_dump_json(by_alias=True, exclude_none=True).encode()


# --- Control plane ----------------------------------------------------------------------------


class ApiError(_Message):
    """Body of every error answer outside the RPCs.

    Attributes:
        code: The HTTP status, as E2B has it.
        message: A fixed text.
    """

    code: int
    message: str = ""


class NewSandbox(_Message):
    """Body of `POST /v2/sandboxes`.

    Attributes:
        timeout: Life in seconds; absent means the service's default.
    """

    template_id: str = "base"
    timeout: StrictInt | None = None
    auto_pause: StrictBool = False
    allow_internet_access: StrictBool | None = None
    metadata: dict[str, str] = {}
    env_vars: dict[str, str] = {}


class ConnectSandbox(_Message):
    """Body of `POST /v2/sandboxes/{id}/connect`; the call never shortens a life."""

    timeout: StrictInt | None = None


class SandboxTimeout(_Message):
    """Body of `POST /sandboxes/{id}/timeout`; the call sets the end, earlier or later."""

    timeout: StrictInt


class Sandbox(_Message):
    """Answer of create and connect.

    Attributes:
        envd_access_token: Credential of this sandbox's data plane; secret, so it has no repr.
    """

    template_id: str
    sandbox_id: str
    client_id: str = ""
    envd_version: str
    envd_access_token: str | None = Field(default=None, repr=False)
    traffic_access_token: str | None = Field(default=None, repr=False)
    domain: str | None = None
    alias: str | None = None


class ListedSandbox(_Message):
    """One sandbox of a list."""

    template_id: str
    sandbox_id: str
    client_id: str = ""
    envd_version: str = ""
    started_at: datetime
    end_at: datetime
    cpu_count: int = 0
    memory_mb: int = 0
    disk_size_mb: int = 0
    state: str
    metadata: dict[str, str] = {}
    alias: str | None = None


class SandboxDetail(ListedSandbox):
    """Answer of `GET /sandboxes/{id}`."""

    envd_access_token: str | None = Field(default=None, repr=False)
    domain: str | None = None


def _number(value: Any) -> Any:
    """Refuse true and false, which pydantic would take for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("a number is expected")
    return value


_Int = Annotated[int, BeforeValidator(_number)]


# --- File transfer ----------------------------------------------------------------------------


class WrittenFile(_Message):
    """One entry of the answer of `POST /files`, which is an array.

    Attributes:
        size: Bytes written; Express says it, other services may not.
    """

    name: str
    type: str = "file"
    path: str
    size: _Int | None = None
    metadata: dict[str, str] = {}


# --- filesystem.Filesystem --------------------------------------------------------------------


class ProtoMessage(_Message):
    """The base of every RPC message: canonical protobuf JSON."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        alias_generator=to_camel,
    )

    def to_json(self) -> bytes:
        """Return the message as canonical protobuf JSON in UTF-8."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True).encode()


class FileType(enum.StrEnum):
    """What an entry is."""

    UNSPECIFIED = "FILE_TYPE_UNSPECIFIED"
    FILE = "FILE_TYPE_FILE"
    DIRECTORY = "FILE_TYPE_DIRECTORY"
    SYMLINK = "FILE_TYPE_SYMLINK"


class EventType(enum.StrEnum):
    """What happened under a watch."""

    UNSPECIFIED = "EVENT_TYPE_UNSPECIFIED"
    CREATE = "EVENT_TYPE_CREATE"
    WRITE = "EVENT_TYPE_WRITE"
    REMOVE = "EVENT_TYPE_REMOVE"
    RENAME = "EVENT_TYPE_RENAME"
    CHMOD = "EVENT_TYPE_CHMOD"


def _enum_reader(members: type[enum.StrEnum]) -> BeforeValidator:
    known = list(members)

    def read(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return known[value] if 0 <= value < len(known) else known[0]
        if isinstance(value, str) and value not in set(known):
            return known[0]  # a newer service may know more values
        return value

    return BeforeValidator(read)


_Int64 = Annotated[_Int, PlainSerializer(str, return_type=str, when_used="json")]


class EntryInfo(ProtoMessage):
    """One entry of a file system.

    Attributes:
        type: What it is. Express says `SYMLINK` for a symbolic link; newer E2B services name the
            kind of its target here and set `is_symlink`.
        size: Bytes.
        mode: Permission bits, as a number.
        permissions: The same as text (`-rw-r--r--`).
        symlink_target: Where a symbolic link points, as stored.
    """

    name: str = ""
    type: Annotated[FileType, _enum_reader(FileType)] = FileType.UNSPECIFIED
    path: str = ""
    size: _Int64 = 0
    mode: _Int = 0
    permissions: str = ""
    owner: str = ""
    group: str = ""
    modified_time: datetime | None = None
    symlink_target: str | None = None
    metadata: dict[str, str] = {}
    is_symlink: StrictBool = False


class StatRequest(ProtoMessage):
    """Asks for one entry; a final symbolic link is not followed."""

    path: str = ""


class MakeDirRequest(ProtoMessage):
    """Makes a directory and its missing parents; `already_exists` where it stands already."""

    path: str = ""


class RemoveRequest(ProtoMessage):
    """Removes an entry, a directory with everything under it."""

    path: str = ""


class MoveRequest(ProtoMessage):
    """Renames an entry."""

    source: str = ""
    destination: str = ""


class ListDirRequest(ProtoMessage):
    """Lists a directory.

    Attributes:
        depth: Levels to descend; 0 counts as 1.
    """

    path: str = ""
    depth: _Int = Field(default=0, ge=0, le=0xFFFF_FFFF)


class EntryResponse(ProtoMessage):
    """Answer of Stat, MakeDir and Move."""

    entry: EntryInfo | None = None


class ListDirResponse(ProtoMessage):
    """Answer of ListDir: every entry but the directory itself, parents before children."""

    entries: list[EntryInfo] = []


class Empty(ProtoMessage):
    """A message without fields: the answers of Remove and RemoveWatcher, and marks in a stream."""


class WatchDirRequest(ProtoMessage):
    """Starts a watch; also the body of CreateWatcher."""

    path: str = ""
    recursive: StrictBool = False
    include_entry: StrictBool = False
    allow_network_mounts: StrictBool = False


class FilesystemEvent(ProtoMessage):
    """One change.

    Attributes:
        name: Path relative to the watched directory.
        entry: The entry after the change, where it was asked for and still stands.
    """

    name: str = ""
    type: Annotated[EventType, _enum_reader(EventType)] = EventType.UNSPECIFIED
    entry: EntryInfo | None = None


class WatchDirResponse(ProtoMessage):
    """One message of a watch: exactly one field is set, `start` in the first."""

    start: Empty | None = None
    filesystem: FilesystemEvent | None = None
    keepalive: Empty | None = None


class Watcher(ProtoMessage):
    """Names a polled watch: answer of CreateWatcher, request of the two other watcher RPCs."""

    watcher_id: str = ""


class WatcherEvents(ProtoMessage):
    """Answer of GetWatcherEvents: what happened since the last call."""

    events: list[FilesystemEvent] = []
