"""The directory of one server's sessions: private, locked, and swept when its owner has died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_sandbox.errors import ConfigError

_PREFIX = "process-"


@dataclass(frozen=True, slots=True)
class Locked:
    """A directory in use.

    Attributes:
        path: Where it is.
        alone: Whether no other process used it when it was opened, so that every attempt found in
            it has been abandoned.
    """

    path: Path
    alone: bool
    _descriptor: int

    def share(self) -> None:
        """Let other processes in, once what was found in it is settled."""
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)


@contextmanager
def shared_directory(path: Path) -> Iterator[Locked]:
    """Open a directory that outlives the process and may be used by several.

    Blocks while another process settles what it found there.

    Raises:
        ConfigError: E6000, it cannot be made, belongs to somebody else, or others may write in it.
    """
    descriptor = _open(path)
    try:
        alone = _try_lock(descriptor)
        if not alone:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield Locked(path, alone, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def process_directory(base: Path) -> Iterator[Locked]:
    """Make a directory that ends with the block; what dead processes left is removed first.

    Raises:
        ConfigError: E6000, as `shared_directory`.
    """
    turn = _open(base)
    try:
        fcntl.flock(
            turn, fcntl.LOCK_EX
        )  # nobody sweeps a directory between its making and its lock
        _sweep(base)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        descriptor = _open(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    finally:
        os.close(turn)
    try:
        yield Locked(path, True, descriptor)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def own_directory(path: Path) -> None:
    """Make a directory of mode 0700 where it is missing.

    Raises:
        ConfigError: E6000, as `shared_directory`.
    """
    os.close(_open(path))


def _open(path: Path) -> int:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise ConfigError(reason="The directory of uploads cannot be made or opened.") from None
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        os.close(descriptor)
        raise ConfigError(
            reason="The directory of uploads must belong to this user, and nobody else may write"
            " in it."
        )
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _try_lock(descriptor):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
