"""The few system calls that the standard library lacks, by ctypes, with errors as `OSError`.

Everything is resolved at import: a process that has dropped its rights, or that has entered a
sandbox, imports and looks up nothing any more.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

CLONE_NEWNS: Final = 0x0002_0000
CLONE_NEWCGROUP: Final = 0x0200_0000
CLONE_NEWUTS: Final = 0x0400_0000
CLONE_NEWIPC: Final = 0x0800_0000
CLONE_NEWUSER: Final = 0x1000_0000
CLONE_NEWPID: Final = 0x2000_0000
CLONE_NEWNET: Final = 0x4000_0000

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NAME = 15
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x2008_0522
_LAST_CAPABILITY = 63
_MS_BIND_RECURSIVELY = 0x1000 | 0x4000
_SYS_CLOSE_RANGE, _SYS_OPENAT2 = 436, 437  # the same numbers on x86_64 and aarch64
_RESOLVE_NO_XDEV, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x01, 0x04, 0x08
_EINVAL = 22

_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_unshare = _libc.unshare
_mount = _libc.mount
_mount.argtypes = [
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
]
_setns = _libc.setns
_setns.argtypes = [ctypes.c_int, ctypes.c_int]
_capset = _libc.capset
_capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _check(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def die_with_parent(signal_number: int) -> None:
    """Ask for `signal_number` when the parent thread ends (prctl(2), PR_SET_PDEATHSIG)."""
    _check(_prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def forbid_tracing() -> None:
    """Make this process non-dumpable: nobody without rights over the host may look into it.

    Forked children inherit it until they execute a program, and the check is made against the
    user namespace in which this program was executed, so no capability inside a sandbox helps.
    """
    _check(_prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def allow_tracing() -> None:
    """Make this process dumpable again, as it was before it changed its user."""
    _check(_prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))


def become_subreaper() -> None:
    """Become the parent of every orphaned descendant (prctl(2), PR_SET_CHILD_SUBREAPER)."""
    _check(_prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def leave_namespaces(kinds: int) -> None:
    """Go on in new namespaces (unshare(2))."""
    _check(_unshare(kinds))


def bind_mount(source: bytes, target: bytes) -> None:
    """Let `target` show the tree at `source`, with the mounts below it (mount(2))."""
    _check(_mount(source, target, None, _MS_BIND_RECURSIVELY, None))


def enter_namespaces(pidfd: int, kinds: int) -> None:
    """Join the namespaces of the process behind `pidfd` in one step (setns(2), Linux 5.8).

    The pid namespace concerns only children that are forked later.
    """
    _check(_setns(pidfd, kinds))


def drop_privileges() -> None:
    """Give up every capability for good, with everything that could bring one back.

    Empty bounding, ambient, inheritable, permitted and effective sets, and no_new_privs.
    """
    for capability in range(_LAST_CAPABILITY + 1):
        if _prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:
            if ctypes.get_errno() != _EINVAL:
                _check(-1)
            break  # EINVAL: this kernel knows no capability of this number
    _check(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0))
    header = _CapHeader(_CAPABILITY_VERSION_3, 0)
    _check(_capset(ctypes.byref(header), ctypes.byref((_CapData * 2)())))
    forbid_new_privileges()


def forbid_new_privileges() -> None:
    """Make set-user-ID programs and file capabilities powerless from here on."""
    _check(_prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def install_seccomp(program: bytes) -> None:
    """Put a BPF filter on this thread and all that it starts; needs no_new_privs first."""
    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = _SockFprog(len(program) // 8, ctypes.addressof(buffer))
    _check(_prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(fprog), 0, 0))


def close_from(first: int) -> None:
    """Close every descriptor from `first` on."""
    if _syscall(_SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(0xFFFF_FFFF), 0) < 0:
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def open_beneath(directory: int, path: bytes, flags: int) -> int:
    """Open `path` under `directory` without a link, a mount or `..` on the way (openat2(2))."""
    resolve = _RESOLVE_NO_XDEV | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    fd: int = _syscall(_SYS_OPENAT2, directory, path, ctypes.byref(how), size)
    _check(fd)
    return fd


def hide_arguments(name: str) -> None:
    """Blank this process's command line, and call it `name`.

    `/proc/<pid>/cmdline` is readable by everybody in the pid namespace, also between the fork of
    a command and its exec, when it would show where the interpreter and this package lie.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, proc_pid_stat(5)
    if 0 < start < end:
        ctypes.memset(start, 0, end - start)
    label = ctypes.create_string_buffer(name.encode()[:15])
    _check(_prctl(_PR_SET_NAME, ctypes.addressof(label), 0, 0, 0))
