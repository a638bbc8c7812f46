"""Starting bubblewrap over a directory that is known by its descriptor."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from typing import NoReturn

from agent_sandbox.express.isolation import command, kernel, messages, rootfs, seccomp

_START_MS = 10_000
_SIGNALS = (
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGXFSZ,
)
_MEETING_POINTS = ("/mnt", "/srv", "/tmp")  # noqa: S108 - mounted over in a namespace of its own
_EXIT_NOT_RUN = 127


class StartError(Exception):
    """The sandbox did not come up: the step, and what bubblewrap said."""


def start_bubblewrap(program: str, directory: int, *, network: bool) -> tuple[int, int]:
    """Return bubblewrap's pid and that of the sandbox's pid 1, once everything stands.

    bubblewrap dies with the calling process.

    Args:
        program: Path of bubblewrap.
        directory: Descriptor of the sandbox's directory.
        network: Whether the host's network is shared.

    Raises:
        StartError: It did not come up.
        OSError: There were too few resources to try.
    """
    if not rootfs.is_prepared(directory):
        raise StartError("directory")
    ready_r, ready_w = _high_pipe()
    error_r, error_w = _high_pipe()
    info_r, info_w = _high_pipe()
    texts = [_pipe_with(text.encode()) for text in rootfs.ETC.values()]
    streams = [ready_w, error_w, info_w, _pipe_with(seccomp.build_filter()), *texts]
    path = _visible_path(directory)
    arguments = rootfs.bubblewrap_arguments(
        path or _meeting_point(), network=network, info_fd=3, seccomp_fd=4, etc_fd=5
    )
    if path is not None:
        pid = _spawn(program, arguments, streams)
    else:
        pid = os.fork()
        if pid == 0:
            _become(program, arguments, streams, directory)
    messages.close_all(streams)
    try:
        poller = select.poll()
        poller.register(ready_r, select.POLLIN)
        if not (poller.poll(_START_MS) and os.read(ready_r, 1)):
            raise StartError(_read_now(error_r) or "bubblewrap")
        return pid, int(json.loads(os.read(info_r, 4096))["child-pid"])
    finally:
        messages.close_all([ready_r, error_r, info_r])


def _visible_path(directory: int) -> str | None:
    """Return a path of the directory that this user can walk, or None."""
    path = os.readlink(f"/proc/self/fd/{directory}")
    try:
        found = os.stat(path)
    except OSError:
        return None
    return path if os.path.samestat(found, os.fstat(directory)) else None


def _meeting_point() -> str:
    return next(path for path in _MEETING_POINTS if os.path.isdir(path))


def _spawn(program: str, arguments: list[str], streams: list[int]) -> int:
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
    ]
    actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(streams, 1)]
    return os.posix_spawn(
        program, ["bwrap", *arguments], {}, file_actions=actions, setsigdef=_SIGNALS
    )


def _become(program: str, arguments: list[str], streams: list[int], directory: int) -> NoReturn:
    """Become a bubblewrap that sees the directory at the meeting point; never returns.

    bubblewrap takes paths only. Where the way to the directory is closed to this user, as below
    root's home, a mount namespace of our own shows the directory at an open place. Only the
    working directory moves along into it, descriptors do not.
    """
    try:
        user, group = os.geteuid(), os.getegid()
        os.fchdir(directory)
        kernel.leave_namespaces(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{user} {user} 1"),
            ("gid_map", f"{group} {group} 1"),
        ):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, text.encode())
            os.close(fd)
        kernel.bind_mount(b".", _meeting_point().encode())
        os.chdir("/")
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        for number, fd in enumerate([null, *streams]):
            os.dup2(fd, number, inheritable=True)
        for signal_number in _SIGNALS:
            signal.signal(signal_number, signal.SIG_DFL)
        os.execve(program, ["bwrap", *arguments], {})  # noqa: S606 - that is the point
    except BaseException as error:  # noqa: BLE001 - this copy of the porter must end
        with contextlib.suppress(OSError):
            os.write(streams[1], f"namespace: {type(error).__name__}".encode())
    finally:
        os._exit(_EXIT_NOT_RUN)


def _read_now(fd: int) -> str:
    os.set_blocking(fd, False)
    try:
        return os.read(fd, 500).decode(errors="replace").strip()
    except BlockingIOError:
        return ""


def _pipe_with(content: bytes) -> int:
    read, write = _high_pipe()
    os.write(write, content)  # far below the capacity of a pipe
    os.close(write)
    return read


def _high_pipe() -> tuple[int, int]:
    # Above the numbers that bubblewrap is given, so that no dup2 overwrites another's source.
    low = os.pipe2(os.O_CLOEXEC)
    high = [command.duplicate_high(fd) for fd in low]
    messages.close_all(list(low))
    return high[0], high[1]
