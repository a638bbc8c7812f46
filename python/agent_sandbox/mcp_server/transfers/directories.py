"""The directory of one server's sessions: private, locked, and swept when its owner has died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from agent_sandbox.errors import ConfigError

LOCK_TIMEOUT_S = 10.0
"""Longest wait for another process that starts with the same directory."""

_PAUSE_S = 0.02
_PREFIX = "process-"
_UNOPENED = "The directory of uploads (--uploads-dir) cannot be made or opened."


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

    async def share(self) -> None:
        """Let other processes in, once what was found in it is settled.

        Raises:
            ConfigError: E6000: another one came first and does not let go.
        """
        await _lock(self._descriptor, fcntl.LOCK_SH)


@asynccontextmanager
async def shared_directory(path: Path) -> AsyncIterator[Locked]:
    """Open a directory that outlives the process and may be used by several.

    Waits while another process settles what it found there, at most `LOCK_TIMEOUT_S`.

    Raises:
        ConfigError: E6000, it cannot be made, belongs to somebody else, others may write in it, or
            the other process does not let go of it.
    """
    descriptor = _open(path)
    try:
        alone = _try_lock(descriptor, fcntl.LOCK_EX)
        if not alone:
            await _lock(descriptor, fcntl.LOCK_SH)
        yield Locked(path, alone, descriptor)
    finally:
        os.close(descriptor)


@asynccontextmanager
async def process_directory(base: Path) -> AsyncIterator[Locked]:
    """Make a directory that ends with the block; what dead processes left is removed first.

    Raises:
        ConfigError: E6000, as `shared_directory`.
    """
    turn = _open(base)
    try:
        # Nobody sweeps a directory between its making and its lock.
        await _lock(turn, fcntl.LOCK_EX)
        await run_sync(_sweep, base)
        path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        descriptor = _open(path)
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # nobody else knows it: no wait
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


def check_directory(path: Path) -> None:
    """Find what would keep a directory from being opened, without making or locking anything.

    Raises:
        ConfigError: E6000, as `shared_directory`, but for locks.
    """
    try:
        _check_owner(path.stat())
    except FileNotFoundError:
        there = next(parent for parent in path.absolute().parents if parent.exists())
        usable = there.is_dir() and os.access(there, os.W_OK | os.X_OK)
    except OSError:
        usable = False
    else:
        usable = path.is_dir()
    if not usable:
        raise ConfigError(reason=_UNOPENED)


def _open(path: Path) -> int:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise ConfigError(reason=_UNOPENED) from None
    try:
        _check_owner(os.fstat(descriptor))
    except ConfigError:
        os.close(descriptor)
        raise
    return descriptor


def _check_owner(status: os.stat_result) -> None:
    if status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise ConfigError(
            reason="The directory of uploads (--uploads-dir) must belong to this user, and nobody"
            " else may write in it."
        )


async def _lock(descriptor: int, kind: int) -> None:
    # By tries: a wait of the kernel's has no bound, and no cancellation ends it.
    with anyio.move_on_after(LOCK_TIMEOUT_S):
        while not _try_lock(descriptor, kind):  # noqa: ASYNC110 - no event tells of a lock
            await anyio.sleep(_PAUSE_S)
        return
    raise ConfigError(
        reason="Another process of this user has the directory of uploads and does not let go:"
        " end it, or choose another directory (--uploads-dir)."
    )


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sweep(base: Path) -> None:
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _try_lock(descriptor, fcntl.LOCK_EX):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(descriptor)
