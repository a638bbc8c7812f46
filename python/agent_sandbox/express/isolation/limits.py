"""What one sandbox may use, and by which mechanism this machine can hold it to that.

=========  ==========================  ==================================================
resource   best                        without it
=========  ==========================  ==================================================
memory     cgroup memory (v2, v1)      RLIMIT_DATA for each process, and the porter's
                                       watch, which kills the largest when the sum is over
processes  cgroup pids (v2, v1)        RLIMIT_NPROC, which counts inside the sandbox's own
                                       user namespace (Linux 5.14)
cpu        cgroup cpu (v2, v1)         a lower priority (nice 10)
disk       RLIMIT_FSIZE for each file, and Express's watch over the sandbox's directory
inotify    a bound of the sandbox's user namespace     nothing
=========  ==========================  ==================================================
"""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import asdict, dataclass
from typing import Any, Literal

Mechanism = Literal["cgroup2", "cgroup1", "rlimit+watch", "rlimit", "priority", "watch", "none"]

GIB = 1_073_741_824

_WATCH_SHARE = 8
"""One sandbox may take this part of the inotify instances that the kernel gives to one user."""

_WATCHED_FILES = 65_536

_DESCRIPTOR_SHARE = 4
"""A command may have this part of the descriptors that its porter may have.

The kernel counts the descriptors that are under way in unix sockets for the service's user, whose
sandboxes share the count, and refuses who sends some while there are more than he may have open
himself: what a command can put under way must not be more than a porter may."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of one sandbox.

    Attributes:
        memory_bytes: All its processes together; shared memory and files in /dev/shm count.
        processes: Processes and threads at one time.
        cpus: Processors' worth of time; needs a cpu cgroup.
        file_bytes: The largest single file (RLIMIT_FSIZE).
        disk_bytes: All files of the sandbox's directory, as blocks on the disk.
        files: Number of files and directories.
        open_files: Descriptors of one process; fewer where the service itself may have few.
    """

    memory_bytes: int = 2 * GIB
    processes: int = 256
    cpus: float = 1.0
    file_bytes: int = 2 * GIB
    disk_bytes: int = 4 * GIB
    files: int = 200_000
    open_files: int = 4096

    def as_message(self) -> dict[str, Any]:
        """Return the limits as a JSON object for the porter."""
        return asdict(self)


def resource_limits(
    limits: Limits, *, own_user_namespace: bool, cgroups: frozenset[str]
) -> list[tuple[int, int]]:
    """Return the (resource, hard and soft value) pairs that each command starts with.

    Args:
        limits: The sandbox's bounds.
        own_user_namespace: Whether processes are counted for this sandbox alone; without it
            RLIMIT_NPROC would count everything that the service's user runs.
        cgroups: Controllers that hold the sandbox already.
    """
    own_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if own_files == resource.RLIM_INFINITY:
        own_files = limits.open_files * _DESCRIPTOR_SHARE
    pairs = [
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, limits.file_bytes),
        (resource.RLIMIT_NOFILE, min(limits.open_files, own_files // _DESCRIPTOR_SHARE)),
        (resource.RLIMIT_MEMLOCK, 8 * 1_048_576),
        (resource.RLIMIT_MSGQUEUE, 819_200),
    ]
    if own_user_namespace:
        # With a pids cgroup too: it refuses the porter's own fork then, this one only theirs.
        pairs.append((resource.RLIMIT_NPROC, limits.processes))
    if "memory" not in cgroups:
        # Not RLIMIT_AS: runtimes reserve address space by the gigabyte and never touch it.
        pairs.append((resource.RLIMIT_DATA, limits.memory_bytes))
    return pairs


def apply_resource_limits(pairs: list[tuple[int, int]]) -> None:
    """Set each limit for this process for good, or keep the stricter one that it has."""
    for kind, wanted in pairs:
        hard = resource.getrlimit(kind)[1]
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))


def bound_watches(settings: int) -> None:
    """Bound what the sandbox takes of the inotify instances that all sandboxes and Express share.

    The kernel counts them for the service's user; a bound of the user namespace, set with the
    capabilities that entering it gave, holds this sandbox to its share. Where /proc/sys is
    read-only, as in many containers, there is none.

    Args:
        settings: `/proc/sys` as it was seen before the namespaces were entered; closed here.
            What lies below `user` in it is of the namespace of the process that looks.
    """
    try:
        with contextlib.suppress(OSError, ValueError):
            flags = os.O_RDONLY | os.O_CLOEXEC
            given = os.open("fs/inotify/max_user_instances", flags, dir_fd=settings)
            try:
                instances = max(1, int(os.read(given, 32)) // _WATCH_SHARE)
            finally:
                os.close(given)
            for name, most in (
                ("user/max_inotify_instances", instances),
                ("user/max_inotify_watches", _WATCHED_FILES),
            ):
                fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=settings)
                try:
                    os.write(fd, b"%d" % most)
                finally:
                    os.close(fd)
    finally:
        os.close(settings)
