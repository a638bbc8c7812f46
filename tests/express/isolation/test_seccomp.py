"""The filter, put on a real process: what it refuses, what it lets through, what it kills."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import signal
import struct
from collections.abc import Callable

import pytest

from agent_sandbox.express.isolation import kernel, seccomp

COLUMN = seccomp.MACHINES[platform.machine()].column
LIBC = ctypes.CDLL(None, use_errno=True)
NEW_USER = 0x1000_0000
CLONE, CLONE3, IOCTL, SOCKET = (56, 220), (435, 435), (16, 29), (41, 198)


def under_filter(body: Callable[[], int]) -> int:
    """Return the wait status of a child that runs `body` under the filter, with no rights."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.geteuid() == 0:  # else there is nothing to drop, and no right to drop it
                kernel.drop_privileges()
            kernel.forbid_new_privileges()
            kernel.install_seccomp(seccomp.build_filter())
            os._exit(body())
        finally:
            os._exit(99)
    return os.waitpid(child, 0)[1]


def call(number: int, *arguments: int) -> int:
    """Return 0 or the errno of a raw system call."""
    given = [ctypes.c_ulong(value) for value in arguments] + [ctypes.c_ulong(0)] * 6
    result = LIBC.syscall(ctypes.c_long(number), *given[:6])
    return ctypes.get_errno() if result < 0 else 0


@pytest.mark.parametrize("name", sorted(seccomp.REFUSED))
def test_a_dangerous_call_answers_eperm(name: str) -> None:
    number = seccomp.REFUSED[name][COLUMN]
    if number is not None:
        assert under_filter(lambda: call(number)) == errno.EPERM << 8


@pytest.mark.parametrize(
    ("call_numbers", "arguments", "expected"),
    [
        (CLONE, (NEW_USER | signal.SIGCHLD,), errno.EPERM),
        (CLONE3, (), errno.ENOSYS),
        (IOCTL, (0, 0x5412, 0), errno.EPERM),
        (IOCTL, (0, 0xFFFF_FFFF_0000_5412, 0), errno.EPERM),
        (IOCTL, (0, 0x541C, 0), errno.EPERM),
        (SOCKET, (40, 1, 0), errno.EAFNOSUPPORT),  # AF_VSOCK
        (SOCKET, (38, 5, 0), errno.EAFNOSUPPORT),  # AF_ALG
        (SOCKET, (17, 3, 0), errno.EAFNOSUPPORT),  # AF_PACKET
        (SOCKET, (1, 1, 0), 0),
        (SOCKET, (2, 1, 0), 0),
        (SOCKET, (10, 1, 0), 0),
        (SOCKET, (16, 3, 0), 0),
    ],
)
def test_arguments_decide(
    call_numbers: tuple[int, int], arguments: tuple[int, ...], expected: int
) -> None:
    status = under_filter(lambda: call(call_numbers[COLUMN], *arguments))
    assert os.waitstatus_to_exitcode(status) == expected


def test_ordinary_work_goes_on() -> None:
    def work() -> int:
        child = os.fork()
        if child == 0:
            os.execv("/bin/sh", ["sh", "-c", "ls / >/dev/null | cat && exit 5"])  # noqa: S606
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert under_filter(work) == 5 << 8


def test_a_foreign_architecture_is_killed() -> None:
    if platform.machine() != "x86_64":  # the other machine has no second instruction set to try
        assert seccomp.build_filter()[:8] == struct.pack("=HBBI", 0x20, 0, 0, 4)
        return

    def legacy_getpid() -> int:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")  # mov eax, 20; int 0x80; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        ctypes.CFUNCTYPE(ctypes.c_int)(address)()
        return 0

    # SIGSEGV where the kernel has no i386 calls at all.
    assert os.WTERMSIG(under_filter(legacy_getpid)) in (signal.SIGSYS, signal.SIGSEGV)


def test_the_second_numbering_of_x86_is_closed() -> None:
    if COLUMN == 0:
        number = 0x4000_0000 | 39  # getpid of x32
        assert under_filter(lambda: call(number)) == errno.ENOSYS << 8


@pytest.mark.parametrize("machine", sorted(seccomp.MACHINES))
def test_every_jump_lands_inside_the_program(machine: str) -> None:
    program = list(struct.iter_unpack("=HBBI", seccomp.build_filter(machine)))
    assert program[-1][0] == 0x06
    assert len(program) < 4096
    for index, (code, when_true, when_false, _) in enumerate(program):
        if code in (0x15, 0x45):
            assert index + 1 + max(when_true, when_false) < len(program)


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(NotImplementedError):
        seccomp.build_filter("riscv64")
