"""Writing a file so that its name holds the old content or the new, and nothing in between."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Mapping, Sequence

from agent_sandbox.errors import ArgumentError, DeclarationError, FileKindError
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.failures import os_errors
from agent_sandbox.express.names import temporary_name
from agent_sandbox.express.tree import METADATA_PREFIX, Tree

_MAX_LINKS = 40
"""Symbolic links followed for one target, as the kernel has it."""

_IOV_MAX = 1024

_NEW_FILE_MODE = 0o644

_TOO_MUCH = frozenset({errno.ENOSPC, errno.E2BIG, errno.ERANGE})
"""What setxattr(2) says of attributes for which a file has no room, on any disk."""


class AtomicFile:
    """A file in the making: written beside its target, then renamed over it.

    Every method blocks on the disk. Either `commit` or `abort` ends it; `abort` after `commit`
    does nothing. What the sandbox's user could not write in place is refused when it is opened.

    Args:
        tree: The sandbox's files.
        path: Canonical target. Missing parents are made, and stay when the write fails. A final
            symbolic link is followed.
        metadata: E2B's metadata of the new file.
        with_sha256: Whether a digest of the content is kept.
    """

    def __init__(
        self, tree: Tree, path: str, *, metadata: Mapping[str, str], with_sha256: bool
    ) -> None:
        self._tree = tree
        self._path = path
        self._metadata = metadata
        self._sha256 = hashlib.sha256() if with_sha256 else None
        self._parent: Descriptor | None = None
        self._file: Descriptor | None = None
        self._name = ""
        self._temporary = ""
        self._mode = _NEW_FILE_MODE
        self.bytes_written = 0

    @property
    def sha256(self) -> bytes | None:
        """The digest of what was written so far, where it was asked for."""
        return self._sha256.digest() if self._sha256 else None

    def open(self) -> None:
        """Find the target, check that it may be replaced, and make the temporary file.

        Raises:
            FileKindError: E4004, where the target is no regular file.
            ArgumentError: E2001, where the file system has no room for so much metadata.
            FileOperationError: E4002 not permitted, E4006 full, and its other kinds.
        """
        with os_errors():
            status = self._find_target()
            if status is not None:
                # setuid and setgid are dropped: new content must not inherit an old trust.
                self._mode = stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
            parent_fd = self._parent.fd if self._parent else -1
            temporary = temporary_name("n" if status is None else "r")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = Descriptor(os.open(temporary, flags, 0o600, dir_fd=parent_fd))
            self._temporary = temporary
            for key, value in self._metadata.items():
                _attach(self._file.fd, key, value)

    def _find_target(self) -> os.stat_result | None:
        """Open the directory of the final target; return the status of what stands there."""
        path = self._path
        for _ in range(_MAX_LINKS):
            self._parent, self._name = self._tree.parent(path, make=path == self._path)
            try:
                flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
                found = Descriptor(os.open(self._name, flags, dir_fd=self._parent.fd))
            except FileNotFoundError:
                return None
            with found as fd:
                status = os.fstat(fd)
                if not stat.S_ISLNK(status.st_mode):
                    _check_writable(fd, status)
                    return status
                link = os.readlink("", dir_fd=fd)
            # Joined as text and resolved by the kernel, physically, as open(2) itself does it.
            directory = path.rpartition("/")[0]
            path = link if link.startswith("/") else f"{directory}/{link}"
            self._parent.close()
            if path.rpartition("/")[2] in ("", ".", ".."):
                raise FileKindError
        raise FileKindError

    def write(self, chunks: Sequence[bytes]) -> None:
        """Append chunks.

        Raises:
            FileOperationError: E4006 full, and its other kinds.
        """
        fd = self._file.fd if self._file else -1
        with os_errors():
            for start in range(0, len(chunks), _IOV_MAX):
                _write_all(fd, chunks[start : start + _IOV_MAX])
        self.bytes_written += sum(map(len, chunks))
        if self._sha256:
            for chunk in chunks:
                self._sha256.update(chunk)

    def commit(self, declared_sha256: bytes | None = None) -> None:
        """Put the file in its place.

        Args:
            declared_sha256: What the digest must be; needs `with_sha256`.

        Raises:
            DeclarationError: E2005, for another digest; nothing was put in place.
            FileOperationError: E4002 not permitted, and its other kinds.
        """
        if declared_sha256 is not None and declared_sha256 != self.sha256:
            raise DeclarationError
        if self._file is None or self._parent is None:
            raise FileKindError
        with os_errors():
            os.fchmod(self._file.fd, self._mode)
            self._file.close()
            os.rename(
                self._temporary,
                self._name,
                src_dir_fd=self._parent.fd,
                dst_dir_fd=self._parent.fd,
            )
        self._temporary = ""
        self._parent.close()

    def abort(self) -> None:
        """Leave the target as it was and take the temporary file away."""
        if self._file:
            self._file.close()
        if self._parent:
            if self._temporary:
                with contextlib.suppress(OSError):
                    os.unlink(self._temporary, dir_fd=self._parent.fd)
                self._temporary = ""
            self._parent.close()


def _check_writable(path_fd: int, status: os.stat_result) -> None:
    """Refuse what is no regular file, and what the user may not write in place."""
    if not stat.S_ISREG(status.st_mode):
        raise FileKindError
    try:
        # No O_TRUNC: this only asks the kernel whether the user may write here. Without O_NONBLOCK
        # a command that holds a lease on the file, fcntl(2), would hold up this thread for 45 s.
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        os.close(os.open(f"/proc/self/fd/{path_fd}", flags))
    except OSError as error:
        # A running program may be replaced, and a file with a lease: the user may write there.
        if error.errno not in (errno.ETXTBSY, errno.EAGAIN):
            raise


def _attach(fd: int, key: str, value: str) -> None:
    """Attach one piece of metadata to a file."""
    try:
        os.setxattr(fd, METADATA_PREFIX + key, value.encode())
    except OSError as error:
        if error.errno in _TOO_MUCH:
            raise ArgumentError from None
        raise


def _write_all(fd: int, chunks: Sequence[bytes]) -> None:
    wanted = sum(map(len, chunks))
    done = os.writev(fd, chunks)
    if done == wanted:
        return
    rest = memoryview(b"".join(chunks))
    while done < wanted:
        done += os.write(fd, rest[done:])
