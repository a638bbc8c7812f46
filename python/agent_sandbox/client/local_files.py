"""Local files that downloads become: whole in their place, or not there at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path
from typing import IO

from agent_sandbox.client._sinks import Count
from agent_sandbox.errors import TransferError

LocalPath = str | os.PathLike[str]

SPILL_BYTES = 1_048_576
"""Bytes that are held before they are written to a local file at once."""


def local_goal(local: LocalPath) -> Path:
    """Return the regular file, there or not yet, that a local path names through its links.

    Raises:
        OSError: Something else is there, and replacing it would destroy it.
    """
    goal = Path(os.path.realpath(local))
    try:
        mode = goal.stat().st_mode
    except FileNotFoundError:
        return goal
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError("not a regular file")
    return goal


class LocalFile:
    """Writes a body to a temporary file beside its goal and renames it at the end.

    The goal is old or complete and new, never partial; a failure leaves no temporary file. A new
    file has mode 0666 less the umask, a replaced one keeps its permission bits, and nobody but
    the owner can open it before it has them.

    Args:
        goal: Where the file goes.
        limit: Bound in bytes, or None.
        declared: What Content-Length said, or None.
    """

    slow = True

    def __init__(self, goal: Path, limit: int | None = None, declared: int | None = None) -> None:
        self._goal = goal
        self._count = Count(limit, declared)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._temp: Path | None = None
        self._file: IO[bytes] | None = None

    def feed(self, chunk: bytes) -> bool:
        """Count a chunk and hold it; returns whether it is time to `spill`."""
        self._count.add(chunk)
        self._held.append(chunk)
        self._held_bytes += len(chunk)
        return self._held_bytes >= SPILL_BYTES

    def spill(self) -> None:
        """Write what is held to the disk."""
        if self._file is None:
            # A name of our own beside the goal, so that the rename stays in one file system;
            # O_EXCL never follows or reuses what somebody else put there.
            temp = self._goal.with_name(f".{secrets.token_hex(12)}.part")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            # What replaces a file must not be more open than that, also while it grows.
            mode = 0o600 if self._goal.exists() else 0o666
            self._temp = temp  # before there is one: Ctrl-C may come between the two
            self._file = os.fdopen(os.open(temp, flags, mode), "wb")
        self._file.writelines(self._held)
        self._held.clear()
        self._held_bytes = 0

    def finish(self) -> int:
        """Put the file in the place of its goal, and return its size."""
        self._count.end()
        self.spill()
        file, temp = self._file, self._temp
        if file is None or temp is None:
            raise TransferError
        file.flush()
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(file.fileno(), self._goal.stat().st_mode & 0o777)
        if os.fstat(file.fileno()).st_size != self._count.bytes_seen:
            raise TransferError
        file.close()
        temp.replace(self._goal)
        self._temp = None
        return self._count.bytes_seen

    def discard(self) -> None:
        """Give the file up; does nothing after `finish`."""
        self._held.clear()
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk: the file goes anyway
                self._file.close()
        if self._temp is not None:
            self._temp.unlink(missing_ok=True)
            self._temp = None
