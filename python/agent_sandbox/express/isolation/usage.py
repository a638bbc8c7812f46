"""How much a sandbox's directory takes, counted so that its owner cannot hide anything."""

from __future__ import annotations

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
    during the walk may count twice or not at all.

    Args:
        root_fd: The directory; stays open and unchanged.
        stop_bytes: Bound for the allocated bytes.
        stop_files: Bound for the number of entries.
    """
    total, count = 0, 0
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
