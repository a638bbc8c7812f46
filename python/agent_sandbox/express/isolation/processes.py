"""Finding, counting and ending the processes of a sandbox, by handles that never name another.

In a sandbox of its own, /proc shows exactly its processes. A descriptor of `/proc/<pid>` is a
handle on that very process (pidfd_send_signal(2) takes it), so what was looked at is what dies.
Without isolation the processes are the porter's descendants; as their subreaper it keeps them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass

_ROUNDS = 50
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class _Seen:
    handle: int
    pid: int
    parent: int
    group: int
    session: int
    started: int
    resident_bytes: int
    zombie: bool


def _scan() -> list[_Seen]:
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        handle = -1
        try:
            handle = os.open(f"/proc/{name}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fd = os.open("stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=handle)
            try:
                text = os.read(fd, 4096)
            finally:
                os.close(fd)
        except OSError:  # it ended meanwhile
            if handle >= 0:
                os.close(handle)
            continue
        fields = text.rpartition(b")")[2].split()  # from the third field on, proc_pid_stat(5)
        found.append(
            _Seen(
                handle,
                int(name),
                parent=int(fields[1]),
                group=int(fields[2]),
                session=int(fields[3]),
                started=int(fields[19]),
                resident_bytes=int(fields[21]) * _PAGE_BYTES,
                zombie=fields[0] in (b"Z", b"X"),
            )
        )
    return found


def _close(seen: list[_Seen]) -> None:
    for one in seen:
        os.close(one.handle)


def _descendants(seen: list[_Seen], ancestors: set[int]) -> set[int]:
    """Return the pids below `ancestors`, by the parents as they are now."""
    children: dict[int, list[int]] = {}
    for one in seen:
        children.setdefault(one.parent, []).append(one.pid)
    reached: set[int] = set()
    pending = list(ancestors)
    while pending:
        for child in children.get(pending.pop(), ()):
            if child not in reached:
                reached.add(child)
                pending.append(child)
    return reached


def _members(seen: list[_Seen], own: int | None) -> list[_Seen]:
    if own is None:
        return [one for one in seen if one.pid != 1 and not one.zombie]
    below = _descendants(seen, {own})
    return [one for one in seen if one.pid in below and not one.zombie]


def count(own: int | None) -> int:
    """Return how many processes run, besides pid 1.

    Args:
        own: Without isolation, the pid whose descendants are meant; else None.
    """
    seen = _scan()
    try:
        return len(_members(seen, own))
    finally:
        _close(seen)


def kill_tree(own: int | None, *, leader: int = 0, everything: bool = False) -> None:
    """Kill a command's session and group with all their descendants, or everything but pid 1.

    Looks again until nothing is left, since what forks between a look and its end escapes that
    look. What left the session AND lost its parent belongs to no command any more and lives on,
    unless everything is meant.
    """
    doomed: set[tuple[int, int]] = set()
    for _ in range(_ROUNDS):
        seen = _scan()
        try:
            members = _members(seen, own)
            if not everything:
                rooted = {one.pid for one in seen if leader in (one.pid, one.group, one.session)}
                rooted |= _descendants(seen, rooted)
                members = [one for one in members if one.pid in rooted]
            members = [one for one in members if (one.pid, one.started) not in doomed]
            if not members:
                return
            for one in members:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(one.handle, signal.SIGSTOP)
            for one in members:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(one.handle, signal.SIGKILL)
                doomed.add((one.pid, one.started))
        finally:
            _close(seen)


def enforce(memory_bytes: int, most: int | None, own: int | None) -> None:
    """Kill the largest process while all together are over `memory_bytes`.

    Args:
        memory_bytes: Bound for the resident bytes; pages that are shared count for each.
        most: Bound for the number of processes; when it is passed all are killed.
        own: As for `count`.
    """
    seen = _scan()
    try:
        members = _members(seen, own)
        if most is not None and len(members) > most:
            for one in members:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(one.handle, signal.SIGKILL)
            return
        total = sum(one.resident_bytes for one in members)
        for one in sorted(members, key=lambda item: item.resident_bytes, reverse=True):
            if total <= memory_bytes:
                return
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(one.handle, signal.SIGKILL)
            total -= one.resident_bytes
    finally:
        _close(seen)
