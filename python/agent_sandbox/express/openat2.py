"""Opening paths that the kernel itself keeps inside a directory: `openat2(2)`, Linux 5.6.

A sandbox's path is never looked at as text and then opened: between the two, whoever runs in the
sandbox could swap a directory for a symbolic link. The kernel resolves and opens in one step.
"""

from __future__ import annotations

import ctypes
import errno
import os

from agent_sandbox.errors import ConfigError
from agent_sandbox.express.descriptors import Descriptor

_SYS_OPENAT2 = 437  # the same on every architecture of ours; alpha alone differs

_NO_MAGICLINKS = 0x02
_NO_SYMLINKS = 0x04
_NO_XDEV = 0x01
_BENEATH = 0x08
_IN_ROOT = 0x10

_ATTEMPTS = 64
"""How often a resolution is repeated that a rename elsewhere disturbed (EAGAIN)."""


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def open_in_root(root_fd: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path as if `root_fd` were `/`, and return the descriptor.

    `..` and absolute symbolic links stay inside; magic links (`/proc/*/fd`, `/proc/*/root`) are
    refused with ELOOP. The descriptor is close-on-exec.

    Raises:
        OSError: As open(2) does; the error names no path.
    """
    return _openat2(root_fd, path, flags, mode, _IN_ROOT | _NO_MAGICLINKS)


def open_below(directory_fd: int, path: str, flags: int) -> int:
    """Open a relative path under a directory without following any symbolic link.

    Mount points end the way: who walks a sandbox from `/` gets its own files, not all of the
    system's.

    Raises:
        OSError: As open(2) does; ELOOP for a symbolic link, EXDEV for a mount and for a way out.
    """
    resolve = _BENEATH | _NO_XDEV | _NO_SYMLINKS | _NO_MAGICLINKS
    return _openat2(directory_fd, path, flags, 0, resolve)


def _openat2(directory_fd: int, path: str, flags: int, mode: int, resolve: int) -> int:
    name = os.fsencode(path)
    how = _OpenHow(flags | os.O_CLOEXEC, mode, resolve)
    code = 0
    for _ in range(_ATTEMPTS):
        fd: int = _syscall(
            _SYS_OPENAT2,
            ctypes.c_int(directory_fd),
            name,
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


def require_openat2() -> None:
    """Make sure that this kernel has `openat2` and that a descriptor can be opened again.

    Raises:
        ConfigError: E6000: the kernel is older than Linux 5.6, a seccomp filter forbids the call,
            or /proc is not mounted.
    """
    try:
        with Descriptor(_openat2(-100, "/", os.O_PATH | os.O_DIRECTORY, 0, _IN_ROOT)) as fd:
            os.close(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        reason = (
            "This kernel has no openat2 (Linux 5.6), or a container's filter forbids it."
            if error.errno in (errno.ENOSYS, errno.EPERM)
            else "/proc must be mounted."
        )
        raise ConfigError(reason=reason) from None
