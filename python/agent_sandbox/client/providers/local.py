"""The embedded default: one Express process for this process, on a unix socket of its own.

The child is started on first need and shared by every client of this process, async and blocking.
It lives as long as a pipe from this process stays open, so that it ends with us however we end.
Another pipe brings back in its own words why it cannot start.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import socket
import stat
import subprocess
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from io import FileIO
from pathlib import Path

from agent_sandbox.client._calls import Target
from agent_sandbox.client.providers import Endpoint, child
from agent_sandbox.client.providers.child import Isolation, Options
from agent_sandbox.errors import SandboxUnavailableError
from agent_sandbox.limits import CLOSE_TIMEOUT_S

_BACKLOG = 1024
"""Connections that may wait while the child starts: nobody polls for its readiness."""

_SETTLED_S = 60.0
"""A socket that was bound a moment ago may not be listening yet."""

_MAX_SOCKET_PATH_BYTES = 100
"""`sun_path` holds 108."""


class ChildService(ABC):
    """A child behind a unix socket and everything that belongs to it; thread-safe.

    It lives as long as a pipe from this process stays open, so that it ends with us however we end.
    """

    def __init__(self) -> None:
        # Held during a fork as well, which may happen in the thread that holds it.
        self._lock = threading.RLock()
        self._directory: Path | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline: int | None = None
        # For the rest of this process, so there is one service for each way to start one.
        atexit.register(self.close_at_exit)
        os.register_at_fork(
            before=self.before_fork, after_in_parent=self.after_fork, after_in_child=self.forget
        )

    def ready(self) -> str | None:
        """Return the socket's path if the child runs."""
        if not self._lock.acquire(blocking=False):
            return None  # another thread starts or stops it: that takes waiting
        try:
            return self._running()
        finally:
            self._lock.release()

    def start(self) -> str:
        """Return the socket's path, starting a child where none runs."""
        with self._lock:
            if path := self._running():
                return path
            self._end_child()
            try:
                return self._spawn()
            except OSError:
                raise SandboxUnavailableError from None

    def stop(self) -> None:
        """End the child and remove what belongs to it; does nothing where none runs."""
        with self._lock:
            self._end_child()
            self._remove_directory()

    def close_at_exit(self) -> None:
        """Let the child end by itself: its pipe closes with this process at the latest."""
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if self._child is not None:
            self._child.returncode = 0  # nobody waits for it, and that is no leak
        self._remove_directory()

    def before_fork(self) -> None:
        """Wait until no thread starts or stops it: a child must not take half a start along.

        It would hold the listener or the pipe open, and the service would outlive its process.
        """
        self._lock.acquire()

    def after_fork(self) -> None:
        """In the parent: go on."""
        self._lock.release()

    def forget(self) -> None:
        """In a forked child: give up the parent's service without touching it."""
        self._lock = threading.RLock()
        if self._lifeline is not None:
            os.close(self._lifeline)  # or the service would outlive the parent
        if self._child is not None:
            self._child.returncode = 0  # it is not ours to wait for
        self._directory = self._child = self._lifeline = None

    def _running(self) -> str | None:
        if self._directory is None or self._child is None or self._child.poll() is not None:
            return None
        path = str(self._directory / "s")
        # Something that cleans up temporary files may have cut off a child that still runs.
        return path if os.path.lexists(path) else None

    def _spawn(self) -> str:
        if self._directory is None or not self._directory.is_dir():
            self._directory = _short_directory()
        path = self._directory / "s"
        # The same path for every child, so that the pools of older clients reach the new one.
        path.unlink(missing_ok=True)
        read_end, write_end = os.pipe()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(path))
                path.chmod(0o600)
                listener.listen(_BACKLOG)
                self._child = self._launch(listener.fileno(), read_end)
            # Our copy of the listener is closed here: when the child dies, a connect is refused
            # instead of waiting in a queue that nobody reads.
        except BaseException:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
        self._lifeline = write_end
        return str(path)

    @abstractmethod
    def _launch(self, listener: int, lifeline: int) -> subprocess.Popen[bytes]:
        """Start the child, which gets a listening socket and the reading end of a pipe."""

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None
        if child is None:
            return
        if not _ended(child, CLOSE_TIMEOUT_S):
            child.terminate()
            if not _ended(child, CLOSE_TIMEOUT_S):
                child.kill()
        child.wait()

    def _remove_directory(self) -> None:
        if self._directory is not None:
            # Never a whole tree: what else may be there is not ours to remove.
            with contextlib.suppress(OSError):
                (self._directory / "s").unlink(missing_ok=True)
                self._directory.rmdir()
            self._directory = None


def _ended(child: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a child without polling."""
    if child.poll() is not None:
        return True
    try:
        descriptor = os.pidfd_open(child.pid)
    except (OSError, AttributeError):  # an old kernel, another system
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
        return child.poll() is not None
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(descriptor)
    return child.poll() is not None


def _short_directory() -> Path:
    """Make a directory of mode 0700 whose sockets have a path that is short enough."""
    base = tempfile.gettempdir()
    _sweep(Path(base))
    if len(os.fsencode(base)) + len("/asb-12345678/s") > _MAX_SOCKET_PATH_BYTES:
        base = "/tmp"  # noqa: S108 - mkdtemp makes an unguessable name of mode 0700 in it
    return Path(tempfile.mkdtemp(prefix="asb-", dir=base))


def _sweep(base: Path) -> None:
    """Remove the directories of processes that were killed before they could."""
    for directory in base.glob("asb-*"):
        with contextlib.suppress(OSError):
            held = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _is_abandoned(held):
                    os.unlink("s", dir_fd=held)
                    directory.rmdir()  # only an empty one: a socket is all that we ever put there
            finally:
                os.close(held)


def _is_abandoned(directory: int) -> bool:
    """Tell whether a directory is one that `_short_directory` made, with a socket nobody hears."""
    own = os.fstat(directory)
    found = os.stat("s", dir_fd=directory, follow_symlinks=False)
    ours = own.st_uid == found.st_uid == os.geteuid()
    if not (ours and stat.S_IMODE(own.st_mode) == 0o700 and stat.S_ISSOCK(found.st_mode)):
        return False
    if time.time() - found.st_mtime < _SETTLED_S:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(f"/proc/self/fd/{directory}/s")
        except ConnectionRefusedError:  # nobody listens, and nobody ever will again
            return True
    return False


class _Express(ChildService):
    """Our own service with one set of options."""

    def __init__(self, options: Options) -> None:
        super().__init__()
        self._options = options
        self._report: FileIO | None = None

    def _launch(self, listener: int, lifeline: int) -> subprocess.Popen[bytes]:
        started, self._report = child.launch(listener, self._options, lifeline_fd=lifeline)
        return started

    def _spawn(self) -> str:
        path = super()._spawn()
        try:
            if self._report is not None:
                child.require_started(self._report)
        except BaseException:
            self._end_child()  # it is ending; who comes next must not take it for one that runs
            raise
        return path


_service = _Express(Options())
_services: dict[Options, _Express] = {Options(): _service}


def stop() -> None:
    """End this process's embedded services, with every sandbox in them; waits for their end.

    The next client starts a new one. Nothing happens where none runs.
    """
    for service in tuple(_services.values()):
        service.stop()


class LocalProvider:
    """Reaches the embedded service of this process.

    Args:
        isolation: See `Options`.
        network: See `Options`.
    """

    streaming = True

    def __init__(self, *, isolation: Isolation = "auto", network: bool = False) -> None:
        options = Options(isolation, network)
        if options not in _services:
            _services[options] = _Express(options)
        self._service = _services[options]

    def ready(self) -> Endpoint | None:
        """Return the endpoint if the service runs."""
        path = self._service.ready()
        return None if path is None else _endpoint(path)

    def open(self) -> Endpoint:
        """Return the endpoint, starting the service where it does not run.

        Raises:
            SandboxUnavailableError: E5003: it cannot be started; `reason` says why, if it knows.
        """
        return _endpoint(self._service.start())


def _endpoint(path: str) -> Endpoint:
    # No key: the socket is 0600 in a 0700 directory. No gzip: nothing is saved on a socket.
    return Endpoint(Target("http://localhost", {}), uds=path, coding="identity")
