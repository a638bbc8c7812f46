"""From a forked porter to the program: everything a command's process does before exec(2).

It tells how it went over its status pipe: first the pid that it has inside the sandbox, then
either the end of the pipe (the program runs) or the step that failed and its errno.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource  # noqa: F401 - bound before imports end; limits uses it in this process
import signal
import stat
import struct
import termios
from typing import Any, NoReturn

from agent_sandbox.express.isolation import kernel, limits

STEP_SETUP, STEP_CWD, STEP_EXEC = 1, 2, 3
_HIGH_FD = 64
_TIOCGPTPEER = 0x5441
_TIOCSPTLCK = 0x40045431
_PTMX_DEVICE = os.makedev(5, 2)
_EXIT_NOT_RUN = 127


def duplicate_high(fd: int) -> int:
    """Duplicate a descriptor to a number that no standard stream has; closed on exec."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)


def open_terminal(size: list[int]) -> tuple[int, int]:
    """Open a pseudo terminal of the sandbox's own devpts; return master and slave.

    Args:
        size: Rows and columns.
    """
    flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
    master = os.open("/dev/ptmx", flags | os.O_NONBLOCK)
    try:
        found = os.fstat(master)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _PTMX_DEVICE:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        slave = fcntl.ioctl(master, _TIOCGPTPEER, flags)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", size[0], size[1], 0, 0))
    except OSError:
        os.close(master)
        raise
    return master, slave


def become(
    request: dict[str, Any],
    fds: list[int],
    slave: int | None,
    pairs: list[tuple[int, int]],
    directory: int | None,
) -> NoReturn:
    """Turn this forked process into the command; never returns.

    Args:
        request: `argv`, `env`, `cwd`.
        fds: The status pipe, then standard input, output and error unless there is a terminal.
        slave: The terminal that becomes all three, or None.
        pairs: Resource limits.
        directory: Without isolation, the sandbox's directory, under which `cwd` lies.
    """
    status = -1
    step = STEP_SETUP
    try:
        os.setsid()
        status = duplicate_high(fds[0])
        streams = [slave] * 3 if slave is not None else fds[1:4]
        sources = [duplicate_high(fd) for fd in streams if fd is not None]
        for number, source in enumerate(sources):
            os.dup2(source, number, inheritable=True)
        if slave is not None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        root = None if directory is None else duplicate_high(directory)
        os.dup2(status, 3, inheritable=False)
        status = 3
        if root is not None:
            os.dup2(root, 4, inheritable=False)
        kernel.close_from(4 if root is None else 5)
        os.write(status, struct.pack("=i", os.getpid()))
        if directory is not None:
            kernel.die_with_parent(signal.SIGKILL)
            kernel.forbid_new_privileges()
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        step = STEP_CWD
        if root is not None:
            os.fchdir(4)
            os.chdir("./" + request["cwd"].lstrip("/"))
        else:
            os.chdir(request["cwd"])
        step = STEP_SETUP
        limits.apply_resource_limits(pairs)
        step = STEP_EXEC
        os.execvpe(request["argv"][0], request["argv"], request["env"])  # noqa: S606 - that is the point
    except OSError as error:
        with contextlib.suppress(OSError):
            os.write(status, struct.pack("=ii", step, error.errno or errno.EIO))
    except BaseException:  # noqa: BLE001 - whatever it is, this copy of the porter must end
        with contextlib.suppress(OSError):
            os.write(status, struct.pack("=ii", step, errno.EINVAL))
    finally:
        os._exit(_EXIT_NOT_RUN)
