"""`inotify(7)` through ctypes, on descriptors instead of paths."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from agent_sandbox.errors import WatchLimitError

IN_MODIFY = 0x0000_0002
IN_ATTRIB = 0x0000_0004
IN_MOVED_FROM = 0x0000_0040
IN_MOVED_TO = 0x0000_0080
IN_CREATE = 0x0000_0100
IN_DELETE = 0x0000_0200
IN_MOVE_SELF = 0x0000_0800
IN_Q_OVERFLOW = 0x0000_4000
IN_IGNORED = 0x0000_8000
IN_ONLYDIR = 0x0100_0000
IN_ISDIR = 0x4000_0000

_WATCHED = (
    IN_MODIFY
    | IN_ATTRIB
    | IN_MOVED_FROM
    | IN_MOVED_TO
    | IN_CREATE
    | IN_DELETE
    | IN_MOVE_SELF
    | IN_ONLYDIR
)

_HEADER = struct.Struct("iIII")
_READ_BYTES = 65_536
_USUAL_INSTANCES = 128

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event as the kernel tells it.

    Attributes:
        watch: Which directory, as `add_directory` returned it; -1 for the queue itself.
        mask: What happened.
        cookie: Ties the two halves of a rename together.
        name: The entry in the directory; empty for the directory itself.
    """

    watch: int
    mask: int
    cookie: int
    name: str


def open_inotify() -> int:
    """Return a new non-blocking, close-on-exec inotify descriptor.

    Raises:
        WatchLimitError: E5014: the user has too many, or the process has no descriptor left.
        OSError: As inotify_init1(2) does.
    """
    return _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), errno.EMFILE)


def add_directory(inotify_fd: int, directory_fd: int) -> int:
    """Watch the directory behind a descriptor, whatever its name is by now.

    Raises:
        WatchLimitError: E5014: the user watches too many directories.
        OSError: As inotify_add_watch(2) does.
    """
    path = f"/proc/self/fd/{directory_fd}".encode()
    # Here ENOSPC has a meaning of its own, and says nothing about a disk.
    return _checked(
        _libc.inotify_add_watch(inotify_fd, path, ctypes.c_uint32(_WATCHED)), errno.ENOSPC
    )


def remove_watch(inotify_fd: int, watch: int) -> None:
    """Stop watching a directory; one that is gone already is fine."""
    _libc.inotify_rm_watch(inotify_fd, watch)


def read_events(inotify_fd: int) -> list[RawEvent]:
    """Return the events that are waiting, or none.

    Raises:
        OSError: As read(2) does.
    """
    try:
        data = os.read(inotify_fd, _READ_BYTES)
    except BlockingIOError:
        return []
    events = []
    offset = 0
    while offset < len(data):
        watch, mask, cookie, length = _HEADER.unpack_from(data, offset)
        offset += _HEADER.size
        name = data[offset : offset + length].rstrip(b"\0")
        offset += length
        events.append(RawEvent(watch, mask, cookie, os.fsdecode(name)))
    return events


def most_instances() -> int:
    """Return how many inotify descriptors the kernel gives to one user."""
    try:
        with open("/proc/sys/fs/inotify/max_user_instances", "rb") as file:
            return int(file.read())
    except (OSError, ValueError):
        return _USUAL_INSTANCES


def _checked(result: int, limit: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        if code == limit:
            raise WatchLimitError
        raise OSError(code, os.strerror(code))
    return result
