"""The file tree of one sandbox: every operation on names, confined to its root by the kernel.

All methods block on the disk and are meant for worker threads; they may run at the same time.
Paths are canonical (`agent_sandbox.express.names.absolute_path`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from agent_sandbox.errors import (
    FileConflictError,
    FileKindError,
    FilePermissionError,
    SizeLimitError,
)
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.failures import os_errors
from agent_sandbox.express.names import readable, temporary_name, temporary_purpose
from agent_sandbox.express.openat2 import open_below, open_in_root
from agent_sandbox.express.removal import remove_tree
from agent_sandbox.wire.e2b import EntryInfo, FileType

MAX_LIST_ENTRIES = 100_000
"""Most entries of one listing."""

MAX_LIST_BYTES = 33_554_432
"""Most bytes of one listing, as JSON."""

MAX_METADATA_BYTES = 65_536
"""Most bytes of one entry's metadata; what goes beyond is left out."""

_MAX_MTIME_S = 253_402_300_799
"""The last second of the year 9999: what a date can say, and a file system can exceed."""

METADATA_PREFIX = "user.e2b."
"""Extended attributes under this prefix are E2B's metadata of a file."""

_DIRECTORY = os.O_PATH | os.O_DIRECTORY


class Tree:
    """The files of one sandbox.

    Args:
        root_fd: A descriptor of its root directory, which the tree takes over.
    """

    def __init__(self, root_fd: int) -> None:
        self._root = Descriptor(root_fd)

    @property
    def root_fd(self) -> int:
        """The root directory's descriptor."""
        return self._root.fd

    def close(self) -> None:
        """Give the root up; no operation may follow."""
        self._root.close()

    def open(self, path: str, flags: int) -> Descriptor:
        """Open what a path names, symbolic links followed.

        Raises:
            OSError: As open(2) does.
        """
        return Descriptor(open_in_root(self.root_fd, path, flags))

    def open_file(self, path: str) -> tuple[Descriptor, os.stat_result]:
        """Open a regular file for reading; never waits for a FIFO or touches a device.

        Raises:
            FileKindError: E4004, for all but a regular file.
            FileOperationError: E4001 missing, E4002 not permitted, and its other kinds.
        """
        with os_errors(), self.open(path, os.O_PATH) as path_fd:
            status = os.fstat(path_fd)
            if not stat.S_ISREG(status.st_mode):
                raise FileKindError
            # The same inode again, for reading: whatever the name means by now.
            reading = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            return Descriptor(os.open(f"/proc/self/fd/{path_fd}", reading)), status

    def parent(self, path: str, *, make: bool = False) -> tuple[Descriptor, str]:
        """Open the directory that holds a path's last component, and return that component.

        Args:
            path: Anything but `/`, which has no parent.
            make: Whether missing directories are made.

        Raises:
            OSError: As open(2) and mkdir(2) do.
        """
        directory, _, name = path.rpartition("/")
        if not name:
            raise FilePermissionError
        directory = directory or "/"
        try:
            return self.open(directory, _DIRECTORY), name
        except FileNotFoundError:
            if not make:
                raise
        self._make_directories(directory)
        return self.open(directory, _DIRECTORY), name

    def _make_directories(self, path: str) -> None:
        done = ""
        for name in path.strip("/").split("/"):
            parent = self.open(done or "/", _DIRECTORY)
            with parent as parent_fd, contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent_fd)
            done = f"{done}/{name}"

    def stat(self, path: str) -> EntryInfo:
        """Return what a path names; a final symbolic link is described, not followed.

        Raises:
            FileOperationError: E4001 missing, and its other kinds.
        """
        with os_errors(), self.open(path, os.O_PATH | os.O_NOFOLLOW) as fd:
            status = os.fstat(fd)
            is_link = stat.S_ISLNK(status.st_mode)
            target = os.readlink("", dir_fd=fd) if is_link else None
            metadata = {} if is_link else _metadata(f"/proc/self/fd/{fd}", follow=True)
            name = path.rpartition("/")[2] or "/"
            return _entry(name, path, status, target, metadata)

    def list(self, path: str, depth: int) -> list[bytes]:
        """Return the entries of a directory, down to `depth` levels, parents before children.

        Each is the JSON of an `EntryInfo`: as an object it would take many times the memory.
        Symbolic links below `path` are not followed. What vanishes meanwhile is left out.

        Raises:
            FileKindError: E4004, where `path` is no directory.
            SizeLimitError: E3001, for more than `MAX_LIST_ENTRIES` entries or `MAX_LIST_BYTES`.
            FileOperationError: E4001 missing, E4002 not permitted, and its other kinds.
        """
        entries: list[bytes] = []
        budget = _Budget()
        base = "" if path == "/" else path
        with os_errors(), self.open(path, os.O_RDONLY | os.O_DIRECTORY) as top_fd:
            # Paths and not descriptors wait on the stack: depth must not exhaust descriptors.
            stack = [_children(top_fd, base, budget)]
            below = [""]
            while stack:
                child = next(stack[-1], None)
                if child is None:
                    stack.pop()
                    below.pop()
                    continue
                entries.append(child.data)
                if child.is_directory and len(stack) < depth:
                    relative = f"{below[-1]}{child.name}"
                    inside = f"{base}/{readable(relative)}"
                    stack.append(_children_below(top_fd, relative, inside, budget))
                    below.append(f"{relative}/")
        return entries

    def make_dir(self, path: str) -> EntryInfo:
        """Make a directory and its missing parents.

        Raises:
            FileConflictError: E4005, where something stands there already.
            FileOperationError: E4002 not permitted, E4006 full, and its other kinds.
        """
        with os_errors():
            if path == "/":
                raise FileConflictError
            parent, name = self.parent(path, make=True)
            with parent as parent_fd:
                os.mkdir(name, dir_fd=parent_fd)
        return self.stat(path)

    def move(self, source: str, destination: str) -> EntryInfo:
        """Rename in one step, over a file that stands at the destination; make its parents.

        Raises:
            FileOperationError: E4001 missing source, E4002 not permitted, E4004 directory over
                file or file over directory, E4005 directory not empty.
            InvalidInputError: E2000, for a directory into itself.
        """
        with os_errors():
            origin, old = self.parent(source)
            with origin as origin_fd:
                os.stat(old, dir_fd=origin_fd, follow_symlinks=False)  # before parents are made
                target, new = self.parent(destination, make=True)
                with target as target_fd:
                    os.rename(old, new, src_dir_fd=origin_fd, dst_dir_fd=target_fd)
        return self.stat(destination)

    def remove(self, path: str) -> None:
        """Remove a file, a link or a directory with all in it; absence is success, as in E2B.

        A directory disappears from its name in one step.

        Raises:
            FileOperationError: E4002 not permitted, and its other kinds.
        """
        with os_errors():
            try:
                parent, name = self.parent(path)
            except FileNotFoundError:
                return
            with parent as parent_fd, contextlib.suppress(FileNotFoundError):
                try:
                    os.unlink(name, dir_fd=parent_fd)
                except IsADirectoryError:
                    _remove_directory(parent_fd, name)

    def entry_below(self, directory_fd: int, relative: str, path: str) -> EntryInfo | None:
        """Return what a watched directory holds under a relative name, None where it is gone."""
        try:
            with Descriptor(open_below(directory_fd, relative, os.O_PATH | os.O_NOFOLLOW)) as fd:
                status = os.fstat(fd)
                target = os.readlink("", dir_fd=fd) if stat.S_ISLNK(status.st_mode) else None
        except OSError:
            return None
        name = relative.rpartition("/")[2]
        return _entry(name, f"{'' if path == '/' else path}/{relative}", status, target, {})


def _remove_directory(parent_fd: int, name: str) -> None:
    doomed = temporary_name("x")
    os.rename(name, doomed, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
    try:
        remove_tree(parent_fd, doomed)
    except OSError:
        # What is left must not lie hidden: its name is how it is found, and removed next time.
        with contextlib.suppress(OSError):
            os.rename(doomed, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        raise


class _Budget:
    """Bounds a listing with all that is read of it, be it in the result yet or not."""

    def __init__(self) -> None:
        self._entries = 0
        self._bytes = 0

    def take(self, data: bytes) -> None:
        self._entries += 1
        self._bytes += len(data) + 1
        if self._entries > MAX_LIST_ENTRIES or self._bytes > MAX_LIST_BYTES:
            raise SizeLimitError(MAX_LIST_BYTES)  # its limit is told in bytes


class _Child(NamedTuple):
    sort_key: str
    name: str
    is_directory: bool
    data: bytes


def _children_below(top_fd: int, relative: str, path: str, budget: _Budget) -> Iterator[_Child]:
    try:
        with Descriptor(open_below(top_fd, relative, os.O_RDONLY | os.O_DIRECTORY)) as fd:
            return _children(fd, path, budget)
    except OSError:  # gone, or not ours to read or search: the entry itself was listed
        return iter(())


def _children(fd: int, path: str, budget: _Budget) -> Iterator[_Child]:
    """Return the entries of one directory by name, read at once; `fd` may close afterwards."""
    found = []
    with os.scandir(fd) as entries:
        for entry in entries:
            if temporary_purpose(entry.name):
                continue
            try:
                status = entry.stat(follow_symlinks=False)
                is_link = stat.S_ISLNK(status.st_mode)
                target = os.readlink(entry.name, dir_fd=fd) if is_link else None
            except FileNotFoundError:
                continue
            metadata = (
                {} if is_link else _metadata(f"/proc/self/fd/{fd}/{entry.name}", follow=False)
            )
            name = readable(entry.name)
            data = _entry(name, f"{path}/{name}", status, target, metadata).to_json()
            budget.take(data)
            found.append(_Child(name, entry.name, stat.S_ISDIR(status.st_mode), data))
    found.sort()
    return iter(found)


def _entry(
    name: str, path: str, status: os.stat_result, target: str | None, metadata: dict[str, str]
) -> EntryInfo:
    mode = status.st_mode
    if stat.S_ISREG(mode):
        kind = FileType.FILE
    elif stat.S_ISDIR(mode):
        kind = FileType.DIRECTORY
    elif stat.S_ISLNK(mode):
        kind = FileType.SYMLINK
    else:
        kind = FileType.UNSPECIFIED
    return EntryInfo(
        name=name,
        path=path,
        type=kind,
        size=status.st_size,
        mode=stat.S_IMODE(mode),
        permissions=stat.filemode(mode),
        owner=_account(status.st_uid, os.geteuid()),
        group=_account(status.st_gid, os.getegid()),
        modified_time=datetime.fromtimestamp(min(status.st_mtime, _MAX_MTIME_S), UTC),
        symlink_target=None if target is None else readable(target),
        is_symlink=target is not None,
        metadata=metadata,
    )


def _account(number: int, own: int) -> str:
    if number == own:
        return "user"
    return "root" if number == 0 else str(number)


def _metadata(proc_path: str, *, follow: bool) -> dict[str, str]:
    found: dict[str, str] = {}
    size = 0
    try:
        for name in os.listxattr(proc_path, follow_symlinks=follow):
            if name.startswith(METADATA_PREFIX):
                value = os.getxattr(proc_path, name, follow_symlinks=follow)
                size += len(name) + len(value)
                if size > MAX_METADATA_BYTES:
                    break
                key = readable(name.removeprefix(METADATA_PREFIX))
                found[key] = value.decode("utf-8", "replace")
    except OSError:  # gone meanwhile, not readable, or a file system without attributes
        return {}
    return found
