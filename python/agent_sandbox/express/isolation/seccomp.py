"""The seccomp filter of a sandbox, assembled by hand as classic BPF (seccomp(2), bpf(4) syntax).

What is refused answers EPERM, so that programs see an ordinary refusal. Refused is what reaches
the kernel beyond the sandbox or widens its attack surface: mounts, new namespaces, kernel keys,
BPF, performance events, io_uring, userfaultfd, modules, kexec, clocks, file handles, contexts of
asynchronous I/O (counted for the whole machine), and socket families that no namespace confines
(vsock reaches the hypervisor). A foreign architecture (i386
on x86_64) kills the process, since its numbers mean other calls.

`ptrace` stays allowed: debuggers are honest tools in a sandbox, the pid namespace confines it,
and since Linux 4.8 a traced process cannot slip past its filter.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Final, NamedTuple

from agent_sandbox.express.isolation import kernel

_LD_ABS, _JEQ, _JSET, _RET = 0x20, 0x15, 0x45, 0x06
_NR, _ARCH, _ARGS = 0, 4, 16  # offsets in struct seccomp_data; both machines are little-endian
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
_X32_BIT = 0x4000_0000

_NEW_NAMESPACES = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
)
_SOCKET_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_TERMINAL_INJECTION = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX


class Machine(NamedTuple):
    """What differs between architectures: the audit number and where the calls are."""

    audit_arch: int
    column: int


MACHINES: Final = {"x86_64": Machine(0xC000_003E, 0), "aarch64": Machine(0xC000_00B7, 1)}
"""The architectures for which there is a filter."""

REFUSED: Final[dict[str, tuple[int | None, int | None]]] = {
    # name: (number on x86_64, number on aarch64); None where the call does not exist
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_setup": (206, 0),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    "nfsservctl": (180, 42),
    "syslog": (103, 116),
    "lookup_dcookie": (212, 18),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "vhangup": (153, 58),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    "process_madvise": (440, 440),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
}
"""Every call that answers EPERM whatever its arguments are."""

_CLONE, _CLONE3, _IOCTL, _SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)


def _load(offset: int) -> bytes:
    return struct.pack("=HBBI", _LD_ABS, 0, 0, offset)


def _jump(test: int, value: int, skip_if_true: int, skip_if_false: int) -> bytes:
    return struct.pack("=HBBI", test, skip_if_true, skip_if_false, value)


def _answer(action: int) -> bytes:
    return struct.pack("=HBBI", _RET, 0, 0, action)


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """Run `body`, which must answer, when the loaded call number is `number`."""
    return [_jump(_JEQ, number, 0, len(body)), *body]


def build_filter(machine: str | None = None) -> bytes:
    """Return the filter as an array of `struct sock_filter`, ready for the kernel or bubblewrap.

    Args:
        machine: A key of `MACHINES`; the running one by default.

    Raises:
        NotImplementedError: There is no filter for this architecture; run nothing on it.
    """
    name = machine or platform.machine()
    if name not in MACHINES:
        raise NotImplementedError
    audit_arch, column = MACHINES[name]
    refuse = _answer(_ERRNO | errno.EPERM)
    allow = _answer(_ALLOW)
    program = [
        _load(_ARCH),
        _jump(_JEQ, audit_arch, 1, 0),
        _answer(_KILL_PROCESS),
        _load(_NR),
    ]
    if name == "x86_64":  # the x32 numbers are a second door to the same calls
        program += [_jump(_JSET, _X32_BIT, 0, 1), _answer(_ERRNO | errno.ENOSYS)]
    program += _when(
        _CLONE[column],
        [_load(_ARGS), _jump(_JSET, _NEW_NAMESPACES, 0, 1), refuse, allow],
    )
    # Its flags lie in memory, where a filter cannot look; ENOSYS makes libc fall back to clone.
    program += _when(_CLONE3[column], [_answer(_ERRNO | errno.ENOSYS)])
    program += _when(
        _IOCTL[column],
        [
            _load(_ARGS + 8),
            *(part for code in _TERMINAL_INJECTION for part in (_jump(_JEQ, code, 0, 1), refuse)),
            allow,
        ],
    )
    program += _when(
        _SOCKET[column],
        [
            _load(_ARGS),
            *(part for family in _SOCKET_FAMILIES for part in (_jump(_JEQ, family, 0, 1), allow)),
            _answer(_ERRNO | errno.EAFNOSUPPORT),
        ],
    )
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            program += _when(number, [refuse])
    program.append(allow)
    return b"".join(program)
