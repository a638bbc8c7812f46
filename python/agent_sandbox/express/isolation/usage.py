"""How much a sandbox's directory takes, counted so that its owner cannot hide anything."""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass

from agent_sandbox.express.isolation import kernel


@dataclass(frozen=True, slots=True)
class Usage:
    """What a directory tree takes: allocated bytes, and files and directories."""

    allocated_bytes: int
    files: int


def measure_usage(root_fd: int, *, stop_bytes: int, stop_files: int) -> Usage:
    """Count what the tree under `root_fd` takes, and stop once either bound is passed.

    Follows no link and leaves neither the tree nor its file system. A directory without read
    permission is opened up for the moment of the look. What cannot be looked at at all (a path
    over PATH_MAX) counts as passing the bound. It blocks: call it in a thread. What is renamed
    during the walk may count twice or not at all. Files that were removed and that a process in
    the tree's own /proc still holds open count too; of one that is only mapped nobody is told the
    size: see `maps_removed_files`.

    Args:
        root_fd: The directory; stays open and unchanged.
        stop_bytes: Bound for the allocated bytes.
        stop_files: Bound for the number of entries.
    """
    held = _measure_removed(root_fd)
    if held is None:
        return Usage(0, stop_files + 1)
    total, count = held.allocated_bytes, held.files
    if total > stop_bytes or count > stop_files:
        return held
    hard_links: set[int] = set()
    pending = [b"."]
    while pending:
        path = pending.pop()
        try:
            current = _open_directory(root_fd, path)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            continue
        except OSError as error:
            if error.errno in _ELSEWHERE:
                continue
            return Usage(total, stop_files + 1)
        try:
            for name in os.listdir(current):
                try:
                    status = os.stat(name, dir_fd=current, follow_symlinks=False)
                except OSError:
                    continue
                count += 1
                is_directory = stat.S_ISDIR(status.st_mode)
                if is_directory:
                    pending.append(os.path.join(path, os.fsencode(name)))
                elif status.st_nlink > 1:
                    if status.st_ino in hard_links:
                        continue
                    hard_links.add(status.st_ino)
                total += status.st_blocks * 512
                if total > stop_bytes or count > stop_files:
                    return Usage(total, count)
        finally:
            os.close(current)
    return Usage(total, count)


def _measure_removed(root_fd: int) -> Usage | None:
    """Count the removed files that processes hold open; None where there is too much to look at."""
    device = os.fstat(root_fd).st_dev
    sizes: dict[int, int] = {}
    looks = 0
    try:
        proc = os.open("proc", _DIRECTORY, dir_fd=root_fd)
    except OSError:
        return Usage(0, 0)
    try:
        if os.fstat(proc).st_dev == device:  # no mount: without isolation there is none
            return Usage(0, 0)
        for pid in filter(str.isdigit, os.listdir(proc)):
            with contextlib.suppress(OSError):  # it ended meanwhile
                opened = os.open(f"{pid}/fd", _DIRECTORY, dir_fd=proc)
                try:
                    for name in os.listdir(opened):
                        looks += 1
                        if looks > _MAX_DESCRIPTORS:
                            return None
                        with contextlib.suppress(OSError):
                            status = os.stat(name, dir_fd=opened)
                            if (
                                status.st_nlink == 0
                                and status.st_dev == device
                                and stat.S_ISREG(status.st_mode)
                            ):
                                sizes[status.st_ino] = status.st_blocks * 512
                finally:
                    os.close(opened)
    finally:
        os.close(proc)
    return Usage(sum(sizes.values()), len(sizes))


def maps_removed_files(root_fd: int) -> bool:
    """Whether a process in the tree's own /proc maps a removed file of the tree's file system.

    What such a file takes of the disk cannot be found out. It blocks: call it in a thread.
    """
    device = os.fstat(root_fd).st_dev
    on_disk = b" %02x:%02x " % (os.major(device), os.minor(device))
    with contextlib.suppress(OSError):
        proc = os.open("proc", _DIRECTORY, dir_fd=root_fd)
        try:
            if os.fstat(proc).st_dev == device:
                return False
            for pid in filter(str.isdigit, os.listdir(proc)):
                with contextlib.suppress(OSError):  # it ended meanwhile
                    maps = os.open(f"{pid}/maps", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
                    with open(maps, "rb") as lines:
                        for line in lines:
                            # address perms offset device inode path, proc_pid_maps(5)
                            if on_disk in line and line.endswith(b" (deleted)\n"):
                                return True
        finally:
            os.close(proc)
    return False


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_MAX_DESCRIPTORS = 100_000
"""Descriptors of all processes that are looked at; who has more could hide files among them."""

_ELSEWHERE = (18, 40)  # EXDEV: a mount; ELOOP: swapped for a link since it was listed


def _open_directory(root_fd: int, path: bytes) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY
    try:
        return kernel.open_beneath(root_fd, path, flags)
    except PermissionError:
        # Its owner took the read permission away, and could hide any number of bytes behind it.
        handle = kernel.open_beneath(root_fd, path, os.O_PATH | os.O_DIRECTORY)
    try:
        mode = stat.S_IMODE(os.fstat(handle).st_mode)
        magic = f"/proc/self/fd/{handle}"
        os.chmod(magic, mode | stat.S_IRUSR | stat.S_IXUSR)
        try:
            return os.open(magic, flags | os.O_CLOEXEC)
        finally:
            os.chmod(magic, mode)
    finally:
        os.close(handle)
