"""Blobs in a local directory.

Not through obstore: its local store neither syncs a file and its directory nor refuses to
replace an object that is written in parts, and both are promised here.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NoReturn

from anyio.to_thread import run_sync

from agent_sandbox.errors import UploadStorageError, UploadStorageFullError
from agent_sandbox.uploads.blobs import READ_BYTES, Parts
from agent_sandbox.uploads.blobs.appending import Appender
from agent_sandbox.uploads.endings import to_its_end

_log = logging.getLogger(__name__)

_TEMPORARY = "incoming"
_DIRECTORY = re.compile(rf"[0-9a-f]+|{_TEMPORARY}")
_NAME = re.compile(r"[0-9a-f]+")

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _refuse(error: OSError) -> NoReturn:
    # Without its text, which holds a path.
    _log.warning("uploads directory: %s", errno.errorcode.get(error.errno or 0, "OSError"))
    if error.errno in _FULL:
        raise UploadStorageFullError from None
    raise UploadStorageError from None


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class LocalWriter:
    """A temporary file that becomes the object by a hard link, which never replaces."""

    def __init__(self, root: Path, key: str) -> None:
        self._root = root
        self._target = root / key
        self._temporary = root / _TEMPORARY / secrets.token_hex(16)
        self._descriptor = -1

    async def write(self, parts: Parts, also: Callable[[], None] | None = None) -> None:
        """Append some chunks."""
        await run_sync(self._write, parts, also)

    async def commit(self) -> None:
        """Sync the file, link it to its name, sync the directory."""
        await to_its_end(run_sync(self._commit))

    async def abort(self) -> None:
        """Drop the temporary file."""
        await to_its_end(run_sync(self._drop))

    def begin(self) -> LocalWriter:
        """Make the temporary file."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            try:
                self._descriptor = os.open(self._temporary, flags, 0o600)
            except FileNotFoundError:  # another disk is here now
                self._temporary.parent.mkdir(0o700, exist_ok=True)
                self._descriptor = os.open(self._temporary, flags, 0o600)
        except OSError as error:
            _refuse(error)
        self._file = Appender(self._descriptor)
        return self

    def _write(self, parts: Parts, also: Callable[[], None] | None) -> None:
        if also is not None:
            also()
        try:
            self._file.write(parts)
        except OSError as error:
            _refuse(error)

    def _commit(self) -> None:
        linked = False
        try:
            # Never tried again: after a failed fsync a second one succeeds and proves nothing.
            os.fsync(self._descriptor)
            self._make_parent()
            os.link(self._temporary, self._target)
            linked = True
            _sync_directory(self._target.parent)
        except OSError as error:
            if linked:
                _unlink_quietly(self._target)
            _refuse(error)
        finally:
            self._drop()

    def _make_parent(self) -> None:
        parent = self._target.parent
        try:
            parent.mkdir(0o700)
        except FileExistsError:
            return
        _sync_directory(self._root)

    def _drop(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _close_quietly(descriptor)
            _unlink_quietly(self._temporary)


class LocalReader:
    """An open file, read in a thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size_bytes = os.fstat(descriptor).st_size

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the file's bytes."""
        try:
            # To its end: a thread that reads on would read whatever has the number next.
            while chunk := await to_its_end(run_sync(os.read, self._descriptor, READ_BYTES)):
                yield chunk
        except OSError as error:
            _refuse(error)

    async def aclose(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            _close_quietly(descriptor)


class LocalBlobs:
    """Objects as files below `root`, which is made with mode 0700.

    A key is one directory and one name. What a crash leaves lies in `incoming` until the sweep.
    """

    def __init__(self, root: Path | str) -> None:
        self._root = Path(root)
        self._root.mkdir(0o700, parents=True, exist_ok=True)
        (self._root / _TEMPORARY).mkdir(0o700, exist_ok=True)
        _sync_directory(self._root)

    async def begin(self, key: str, size_bytes: int) -> LocalWriter:
        """Start an object; `size_bytes` is not needed here."""
        writer = LocalWriter(self._root, key)
        try:
            return await to_its_end(run_sync(writer.begin))
        except asyncio.CancelledError:  # nobody else knows of the file
            await writer.abort()
            raise

    async def open(self, key: str) -> LocalReader | None:
        """Open an object, None if there is none."""
        readers: list[LocalReader] = []

        def opened() -> LocalReader:
            descriptor = os.open(self._root / key, os.O_RDONLY | os.O_CLOEXEC)
            readers.append(LocalReader(descriptor))
            return readers[0]

        try:
            return await to_its_end(run_sync(opened))
        except asyncio.CancelledError:
            for reader in readers:
                await reader.aclose()
            raise
        except FileNotFoundError:
            return None
        except OSError as error:
            _refuse(error)

    async def head(self, key: str) -> int | None:
        """Return an object's size, None if there is none."""
        try:
            return (await run_sync(os.stat, self._root / key)).st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            _refuse(error)

    async def delete(self, key: str) -> None:
        """Delete an object; a missing one is fine."""

        def delete() -> None:
            (self._root / key).unlink(missing_ok=True)

        try:
            await run_sync(delete)
        except OSError as error:
            _refuse(error)

    async def list_orphans(self, older_than_s: float) -> AsyncIterator[str]:
        """Yield the keys of all files at least that old."""
        for key in await run_sync(lambda: list(self._older(time.time() - older_than_s))):
            yield key

    def _older(self, than: float) -> Iterator[str]:
        try:
            for directory in self._root.iterdir():
                # Only what can be ours: a file system of its own has a `lost+found` here.
                if not _DIRECTORY.fullmatch(directory.name):
                    continue
                for path in directory.iterdir():
                    try:
                        status = path.stat(follow_symlinks=False)
                    except FileNotFoundError:  # used and deleted meanwhile
                        continue
                    ours = _NAME.fullmatch(path.name) and stat.S_ISREG(status.st_mode)
                    if ours and status.st_mtime <= than:
                        yield f"{directory.name}/{path.name}"
        except OSError as error:
            _refuse(error)


def _close_quietly(descriptor: int) -> None:
    # What was written is proved by the fsync before; after an error it is closed all the same.
    with contextlib.suppress(OSError):
        os.close(descriptor)


def _unlink_quietly(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the sweep finds it by its age
