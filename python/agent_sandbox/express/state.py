"""The state directory: one locked directory for each running instance, and the sweep of dead ones.

::

    <state>/lock                              held for moments: an instance begins, or is swept
    <state>/instances/<instance>/lock         held as long as the instance lives
    <state>/instances/<instance>/<sandbox>/root
    <state>/dead/<instance or sandbox>        on its way out

Everything is reached by descriptor: after a drop of privileges, the directories above the state
directory need not be searchable.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from agent_sandbox.errors import ConfigError
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.isolation import prepare_directory
from agent_sandbox.express.removal import remove_tree

_log = logging.getLogger(__name__)

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW


def default_state_dir() -> Path:
    """Return `/var/lib/agent-sandbox` for root, else the place that XDG gives a user's state."""
    if os.geteuid() == 0:
        return Path("/var/lib/agent-sandbox")
    home = os.environ.get("XDG_STATE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    return base / "agent-sandbox"


def open_state_dir(path: Path, *, uid: int, gid: int) -> Descriptor:
    """Open the state directory, made with mode 0700 for `uid` where it is missing or empty.

    Raises:
        ConfigError: E6000: it cannot be made, is a symbolic link, belongs to somebody else and is
            in use, or others may write in it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.is_symlink():  # for the text; whether it is one decides the opening
            raise ConfigError(reason="The state directory is a symbolic link: name its target.")
        with contextlib.ExitStack() as on_failure:
            directory = on_failure.enter_context(Descriptor(os.open(path, _DIRECTORY)))
            status = os.fstat(directory)
            if status.st_uid == uid:
                if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise ConfigError(reason="Others may write in the state directory.")
            else:
                if os.geteuid() != 0 or os.listdir(directory):
                    raise ConfigError(reason="The state directory belongs to another user.")
                os.fchown(directory, uid, gid)
                os.fchmod(directory, 0o700)
            on_failure.pop_all()
            return Descriptor(directory)
    except OSError as error:
        raise ConfigError(
            reason=f"The state directory cannot be used: {os.strerror(error.errno or 0)}."
        ) from None


class Instance:
    """This process's own part of the state directory.

    Args:
        state: The state directory, which the instance takes over.

    Raises:
        ConfigError: E6000: the directory cannot be written.
    """

    def __init__(self, state: Descriptor) -> None:
        self._state = state
        self._name = secrets.token_hex(8)
        try:
            with _locked(state.fd):
                self._instances = Descriptor(_make_directory(state.fd, "instances"))
                self._dead = Descriptor(_make_directory(state.fd, "dead"))
                self._own = Descriptor(_make_directory(self._instances.fd, self._name))
                self._lock = Descriptor(_lock(self._own.fd, fcntl.LOCK_EX))
                self._bury_dead()
        except OSError as error:
            raise ConfigError(
                reason=f"The state directory cannot be written: {os.strerror(error.errno or 0)}."
            ) from None

    def _bury_dead(self) -> None:
        for name in os.listdir(self._instances.fd):
            if name == self._name or not _is_dead(self._instances.fd, name):
                continue
            with contextlib.suppress(OSError):
                os.rename(name, name, src_dir_fd=self._instances.fd, dst_dir_fd=self._dead.fd)

    def sweep(self) -> None:
        """Remove what instances that crashed have left, and what resisted its removal.

        May take long; safe at any time.
        """
        with contextlib.suppress(OSError):  # the next sweep tries again
            for name in os.listdir(self._dead.fd):
                with contextlib.suppress(OSError):
                    remove_tree(self._dead.fd, name)

    def make_root(self, sandbox_id: str) -> int:
        """Make the directory of a sandbox and return a descriptor of its root.

        Raises:
            OSError: As mkdir(2) does; then nothing is left of it.
        """
        try:
            return self._make_root(sandbox_id)
        except OSError:
            with contextlib.suppress(OSError):
                self.remove_root(sandbox_id)
            raise

    def _make_root(self, sandbox_id: str) -> int:
        os.mkdir(sandbox_id, 0o700, dir_fd=self._own.fd)
        with Descriptor(os.open(sandbox_id, _DIRECTORY, dir_fd=self._own.fd)) as fd:
            os.mkdir("root", 0o755, dir_fd=fd)
            root = os.open("root", _DIRECTORY, dir_fd=fd)
        try:
            prepare_directory(root)
        except BaseException:
            os.close(root)
            raise
        return root

    def remove_root(self, sandbox_id: str) -> None:
        """Remove the directory of a sandbox with everything in it.

        What is to be removed is recorded first, by its move to where the sweep looks: whatever
        stops the removal, this process's own end included, a sweep finishes it.

        Raises:
            OSError: As rmdir(2) and unlink(2) do. The sweep tries again.
        """
        try:
            os.rename(sandbox_id, sandbox_id, src_dir_fd=self._own.fd, dst_dir_fd=self._dead.fd)
        except FileNotFoundError:
            return
        remove_tree(self._dead.fd, sandbox_id)

    def close(self) -> None:
        """Remove this instance's directory and let go of the state directory."""
        try:
            with _locked(self._state.fd):
                os.rename(
                    self._name,
                    self._name,
                    src_dir_fd=self._instances.fd,
                    dst_dir_fd=self._dead.fd,
                )
            remove_tree(self._dead.fd, self._name)
        except OSError as error:  # the next start sweeps it
            _log.error(
                "the instance's directory was not removed",
                extra={"fields": {"errno": error.errno}},
            )
        for descriptor in (self._lock, self._own, self._dead, self._instances, self._state):
            descriptor.close()


def _make_directory(parent_fd: int, name: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent_fd)
    return os.open(name, _DIRECTORY, dir_fd=parent_fd)


def _is_dead(instances_fd: int, name: str) -> bool:
    try:
        with Descriptor(os.open(name, _DIRECTORY, dir_fd=instances_fd)) as fd:
            os.close(_lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB))
    except OSError:  # BlockingIOError: its owner lives
        return False
    return True


@contextlib.contextmanager
def _locked(directory_fd: int) -> Iterator[None]:
    with Descriptor(_lock(directory_fd, fcntl.LOCK_EX)):
        yield


def _lock(directory_fd: int, how: int) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open("lock", flags, 0o600, dir_fd=directory_fd)
    try:
        fcntl.flock(fd, how)
    except OSError:
        os.close(fd)
        raise
    return fd
