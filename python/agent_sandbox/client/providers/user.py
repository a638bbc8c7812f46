"""One Express for each user of a machine, for programs that come and go: the command line.

The first one that needs it starts it in the background, and it ends with its last sandbox. All of
them meet in one private directory::

    $XDG_RUNTIME_DIR/agent-sandbox/     or /tmp/agent-sandbox-<uid>/
        lock    shared by everybody who uses the service, exclusive to whom starts or ends it
        s       the socket
        how     the options it was started with

Locks of flock(2) end with their holders, however those end. The service ends only while it holds
the lock alone, so that nobody is left with a socket that is just being closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from agent_sandbox.client._calls import Target
from agent_sandbox.client.providers import Endpoint
from agent_sandbox.client.providers.child import Options, launch, require_started
from agent_sandbox.errors import (
    ConfigError,
    SandboxNotFoundError,
    SandboxTimeoutError,
    SandboxUnavailableError,
)

LOCK_S = 30.0
"""Longest wait for others who start or end the service."""

COMMON = "/tmp"  # noqa: S108 - what is found in it is checked
"""Where the private directory is made without an XDG_RUNTIME_DIR; the same for every program."""

# In /tmp nobody can remove what belongs to somebody else.
_WAY_OUT = "Remove it, or name a directory of yours, with mode 0700, in XDG_RUNTIME_DIR."

_PAUSE_S = 0.02
_BACKLOG = 1024
_MAX_HOW_BYTES = 100
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UserProvider:
    """Reaches the service of this user; holds it open until `close`.

    Args:
        options: How it must run; None: as it runs, or as is usual where it is started here.
        start: Whether to start it where it does not run.
    """

    streaming = True

    def __init__(self, options: Options | None = None, *, start: bool) -> None:
        self._options = options
        self._start = start
        self._directory: int | None = None
        self._lock: int | None = None
        self._found: Endpoint | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the service, which may end then."""
        for descriptor in (self._lock, self._directory):
            if descriptor is not None:
                os.close(descriptor)
        self._lock = self._directory = self._found = None

    def ready(self) -> Endpoint | None:
        """Return the endpoint if it was opened before."""
        return self._found

    def open(self) -> Endpoint:
        """Return the endpoint, starting the service where that is allowed and it does not run.

        Raises:
            SandboxNotFoundError: E5001: it does not run, so there is no sandbox, and it is not to
                be started.
            SandboxUnavailableError: E5003: it cannot be started; `reason` says why, if it knows.
            SandboxTimeoutError: E5004: others take too long to start or to end it.
            ConfigError: E6000: the directory where its users meet belongs to somebody else, or it
                runs with other options.
        """
        if self._found is None:
            self._found = self._reach()
        return self._found

    def _reach(self) -> Endpoint:
        if self._directory is None:
            self._directory = open_directory()
        if self._lock is None:
            self._lock = _open_lock(self._directory)
        path = f"/proc/self/fd/{self._directory}/s"  # short, and nobody can exchange what it names
        until = time.monotonic() + LOCK_S
        while time.monotonic() < until:
            if _takes(self._lock, fcntl.LOCK_SH):
                if _listens(path):
                    self._check_options()
                    return Endpoint(Target("http://localhost", {}), uds=path, coding="identity")
                if not self._start:
                    raise SandboxNotFoundError
                # Not by waiting: who starts it meanwhile goes on to use it, maybe for long.
                if _takes(self._lock, fcntl.LOCK_EX):
                    if not _listens(path):
                        self._launch(path)
                    continue
            time.sleep(_PAUSE_S)
        raise SandboxTimeoutError

    def _check_options(self) -> None:
        if self._options is None:
            return
        with open("how", "rb", opener=self._opener) as file:
            runs = file.read(_MAX_HOW_BYTES)
        if runs != _written(self._options):
            raise ConfigError(
                reason="Your sandbox service runs with other options for isolation or network, and"
                " all its sandboxes share them: end those first."
            )

    def _opener(self, name: str, flags: int) -> int:
        return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._directory)

    def _launch(self, path: str) -> None:
        assert self._directory is not None  # noqa: S101 - `_reach` opened it
        # A lock of its own: ours would be one with it, and the two would end together.
        lock = _open_lock(self._directory)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("s", dir_fd=self._directory)  # what a killed service left
            options = self._options or Options()
            with open("how", "wb", opener=self._opener) as file:
                file.write(_written(options))
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(path)
                os.chmod(path, 0o600)
                listener.listen(_BACKLOG)
                child, report = launch(listener.fileno(), options, users_fd=lock)
            child.returncode = 0  # nobody waits for it, and that is no leak
        except OSError:
            raise SandboxUnavailableError from None
        finally:
            os.close(lock)
        require_started(report)


def _written(options: Options) -> bytes:
    return f"{options.isolation} {options.network}\n".encode()


def open_directory() -> int:
    """Open the private directory where the users of the service meet, made where it is missing.

    Raises:
        ConfigError: E6000: something else has its name.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/") and _is_private(runtime):
        path = Path(runtime) / "agent-sandbox"
    else:
        path = Path(COMMON) / f"agent-sandbox-{os.geteuid()}"
    try:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        directory = os.open(path, _DIRECTORY)
    except OSError as error:
        why = (
            "it is a symbolic link" if error.errno == errno.ELOOP else os.strerror(error.errno or 0)
        )
        if error.errno == errno.ENOTDIR:
            why = "it is no directory of yours"
        raise ConfigError(reason=f"{path} cannot be used: {why}. {_WAY_OUT}") from None
    if not _is_own(os.fstat(directory)):
        os.close(directory)
        raise ConfigError(
            reason=f"{path} is not private: it must be yours, with mode 0700. {_WAY_OUT}"
        )
    return directory


def _is_private(path: str) -> bool:
    try:
        return _is_own(os.stat(path))
    except OSError:
        return False


def _is_own(status: os.stat_result) -> bool:
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    )


def _open_lock(directory: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open("lock", flags, 0o600, dir_fd=directory)
    except OSError as error:
        raise SandboxUnavailableError(
            reason=f"The sandbox service's lock cannot be opened: {os.strerror(error.errno or 0)}."
        ) from None


def _takes(lock: int, how: int) -> bool:
    """Take the lock, or change how it is held; where others are in the way, hold nothing."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False
    return True


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # its queue is full: it is there, and busy or stopped
            return True
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True
