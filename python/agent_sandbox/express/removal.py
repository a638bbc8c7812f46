"""Removing whole directories, however deep, wide or locked, without following a symbolic link."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat

from agent_sandbox.express.descriptors import Descriptor

_PASSES = 16
"""How often a directory is emptied again while somebody keeps filling it."""

_DISTURBED = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP}
)
"""What calls fail with where somebody else writes, moves and removes in the same tree."""


def remove_tree(parent_fd: int, name: str) -> None:
    """Remove a directory with everything under it, or what has taken its place.

    Works through the tree flat: a directory that is found is first moved up to `name` itself, so
    that neither depth nor the number of descriptors grows. Directories that lack their owner's
    permissions get them. A failure leaves the rest behind, with that flat shape.

    Args:
        parent_fd: The directory that holds `name`.
        name: One component; a directory that nobody else needs intact.

    Raises:
        OSError: As rmdir(2) and unlink(2) do; a missing `name` is success.
    """
    for left in reversed(range(_PASSES)):
        try:
            os.unlink(name, dir_fd=parent_fd)
            return
        except FileNotFoundError:
            return
        except IsADirectoryError:
            pass
        try:
            _remove_once(parent_fd, name)
            return
        except OSError as error:
            if error.errno not in _DISTURBED or not left:
                raise


def _remove_once(parent_fd: int, name: str) -> None:
    with Descriptor(_open_whole(parent_fd, name)) as top_fd:
        pending = _unlink_files(top_fd, top_fd, lift=False)
        while pending:
            child = pending.pop()
            try:
                pending += _empty(top_fd, child)
            except FileNotFoundError:  # somebody else is removing the same tree
                continue
    _remove_directory(parent_fd, name)


def _empty(top_fd: int, name: str) -> list[str]:
    """Empty and remove the directory `name` of top; return the directories moved up from it."""
    lifted: list[str] = []
    for attempt in range(_PASSES):
        with Descriptor(_open_whole(top_fd, name)) as fd:
            lifted += _unlink_files(fd, top_fd, lift=True)
        try:
            _remove_directory(top_fd, name)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or attempt == _PASSES - 1:
                raise
        else:
            break
    return lifted


def _unlink_files(fd: int, top_fd: int, *, lift: bool) -> list[str]:
    """Unlink all files of a directory; return the names that its directories have in top."""
    directories = []
    with os.scandir(fd) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_directory in names:
        if not is_directory:
            try:
                os.unlink(name, dir_fd=fd)
            except FileNotFoundError:
                pass
            except IsADirectoryError:  # it was a file a moment ago
                is_directory = True
        if is_directory:
            directories.append(_lift(fd, name, top_fd) if lift else name)
    return directories


def _lift(fd: int, name: str, top_fd: int) -> str:
    # Moving a directory to another parent rewrites its `..`, which needs write permission on it.
    os.close(_open_whole(fd, name))
    lifted = secrets.token_hex(16)
    os.rename(name, lifted, src_dir_fd=fd, dst_dir_fd=top_fd)
    return lifted


def _open_whole(parent_fd: int, name: str) -> int:
    """Open a directory for reading, after giving its owner every permission on it."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with Descriptor(os.open(name, flags, dir_fd=parent_fd)) as fd:
        status = os.fstat(fd)
        if status.st_mode & stat.S_IRWXU != stat.S_IRWXU and status.st_uid == os.geteuid():
            # By descriptor: by name it would follow a link that was swapped in.
            os.chmod(f"/proc/self/fd/{fd}", stat.S_IRWXU)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)


def _remove_directory(parent_fd: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent_fd)
