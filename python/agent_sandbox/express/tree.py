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

from agent_sandbox.errors import (
    FileConflictError,
    FileKindError,
    FilePermissionError,
    SizeLimitError,
)
from agent_sandbox.express.failures import os_errors
from agent_sandbox.express.names import readable, temporary_name, temporary_purpose
from agent_sandbox.express.openat2 import Descriptor, open_below, open_in_root
from agent_sandbox.express.removal import remove_tree
from agent_sandbox.wire.e2b import EntryInfo, FileType

MAX_LIST_ENTRIES = 100_000
"""Most entries of one listing."""

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

    def list(self, path: str, depth: int) -> list[EntryInfo]:
        """Return the entries of a directory, down to `depth` levels, parents before children.

        Symbolic links below `path` are not followed. What vanishes meanwhile is left out.

        Raises:
            FileKindError: E4004, where `path` is no directory.
            SizeLimitError: E3001, for more than `MAX_LIST_ENTRIES` entries.
            FileOperationError: E4001 missing, E4002 not permitted, and its other kinds.
        """
        entries: list[EntryInfo] = []
        base = "" if path == "/" else path
        with os_errors(), self.open(path, os.O_RDONLY | os.O_DIRECTORY) as top_fd:
            # Paths and not descriptors wait on the stack: depth must not exhaust descriptors.
            stack = [_children(top_fd, base)]
            below = [""]
            while stack:
                entry = next(stack[-1], None)
                if entry is None:
                    stack.pop()
                    below.pop()
                    continue
                entries.append(entry)
                if len(entries) > MAX_LIST_ENTRIES:
                    raise SizeLimitError(MAX_LIST_ENTRIES)
                if entry.type is FileType.DIRECTORY and len(stack) < depth:
                    relative = f"{below[-1]}{entry.name}"
                    stack.append(_children_below(top_fd, relative, entry.path))
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
            with parent as parent_fd:
                try:
                    os.unlink(name, dir_fd=parent_fd)
                except FileNotFoundError:
                    return
                except IsADirectoryError:
                    doomed = temporary_name("x")
                    os.rename(name, doomed, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
                    remove_tree(parent_fd, doomed)

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


def _children_below(top_fd: int, relative: str, path: str) -> Iterator[EntryInfo]:
    try:
        descriptor = Descriptor(open_below(top_fd, relative, os.O_RDONLY | os.O_DIRECTORY))
    except OSError:  # gone, or not ours to read: the entry itself was listed
        return iter(())
    with descriptor as fd:
        return _children(fd, path)


def _children(fd: int, path: str) -> Iterator[EntryInfo]:
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
            found.append(_entry(name, f"{path}/{name}", status, target, metadata))
            if len(found) > MAX_LIST_ENTRIES:
                raise SizeLimitError(MAX_LIST_ENTRIES)
    found.sort(key=lambda entry: entry.name)
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
        modified_time=datetime.fromtimestamp(status.st_mtime, UTC),
        symlink_target=None if target is None else readable(target),
        is_symlink=target is not None,
        metadata=metadata,
    )


def _account(number: int, own: int) -> str:
    if number == own:
        return "user"
    return "root" if number == 0 else str(number)


def _metadata(proc_path: str, *, follow: bool) -> dict[str, str]:
    try:
        names = os.listxattr(proc_path, follow_symlinks=follow)
        return {
            name.removeprefix(METADATA_PREFIX): os.getxattr(
                proc_path, name, follow_symlinks=follow
            ).decode("utf-8", "replace")
            for name in names
            if name.startswith(METADATA_PREFIX)
        }
    except OSError:  # gone meanwhile, not readable, or a file system without attributes
        return {}
