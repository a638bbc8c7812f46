"""The zygote: a small process without secrets, from which the porter of each sandbox is forked.

It is executed while the service still has its rights, imports all that it and its children will
ever need, then drops to the service's user and loses the means to import. It ends when its
control socket does, after the porters, whose own sockets end with the service too.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import warnings  # noqa: F401 - os.get_exec_path imports it, when nothing may be imported any more
from typing import NoReturn

from agent_sandbox.express.isolation import cgroups, kernel, messages, porter

_SWEEP_MS = 200
_LAST_SWEEPS = 50
_CHILDREN = "/proc/thread-self/children"  # where the kernel has it (CONFIG_PROC_CHILDREN)


def main(
    control_fd: int, identity: tuple[int, int] | None, parents: cgroups.CgroupParents
) -> NoReturn:
    """Serve fork requests on the control socket until its other end is closed.

    Args:
        control_fd: Socket for messages; each is about one sandbox, and carries its porter's socket
            and its directory.
        identity: Numeric user and group to become, or None to stay who we are.
        parents: Where the sandboxes' control groups go.
    """
    kernel.hide_arguments("sandbox")
    if identity is not None:
        user, group = identity
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    os.umask(0o022)
    os.chdir("/")
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(name, signal.SIG_IGN)  # our end is the end of the socket, not a Ctrl-C
    # What a lost porter leaves is reaped here at once, whatever the machine's init does: the
    # namespace of a sandbox cannot end before all of its processes are reaped.
    kernel.become_subreaper()
    forget_imports()
    control = socket.socket(fileno=control_fd)
    gc.collect()
    gc.disable()  # and freeze: a collection would touch, and so copy, the pages that forks share
    gc.freeze()
    _serve(control, parents)
    os._exit(0)


def forget_imports() -> None:
    """Make every later import fail.

    Inside a sandbox, the paths on `sys.path` are the sandbox's to fill.
    """
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.meta_path.clear()


def _serve(control: socket.socket, parents: cgroups.CgroupParents) -> None:
    died_r, died_w = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(died_w, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # what counts is the byte in the pipe
    poller = select.poll()
    poller.register(control, select.POLLIN)
    poller.register(died_r, select.POLLIN)
    porters: dict[int, str] = {}  # pid -> the name of its groups
    leftover: list[str] = []
    strays = False
    last_sweeps = 0  # counted once the service is gone
    while not last_sweeps or ((porters or leftover or strays) and last_sweeps < _LAST_SWEEPS):
        last_sweeps += bool(last_sweeps)
        for fd, _ in poller.poll(_SWEEP_MS if leftover or last_sweeps else None):
            if fd == died_r:
                os.read(died_r, 4096)
                continue
            try:
                received = messages.receive(control)
            except ValueError:  # there was no room for its descriptors: they are closed already
                continue
            if received is None:
                poller.unregister(control)
                last_sweeps = 1
                continue
            request, fds = received
            try:
                pid = os.fork()
            except OSError:  # too many processes: its socket closes, and all others live on
                messages.close_all(fds)
                continue
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                messages.close_all([control.detach(), died_r, died_w])
                porter.main(socket.socket(fileno=fds[0]), fds[1], request, parents)
            messages.close_all(fds)
            porters[pid] = request["name"]
        for name in _reap(porters):
            leftover += [
                os.path.join(directory, name)
                for directory in dict.fromkeys(parents.directories.values())
            ]
        strays = _kill_strays(porters)
        # A dying sandbox still stands in its groups for a moment: looked at again until empty.
        leftover = [group for group in leftover if not cgroups.remove_tree(group)]


def _kill_strays(porters: dict[int, str]) -> bool:
    """Kill our children that are no porters, and return whether there were any.

    They are what a porter left that was killed. bubblewrap's own binding to its parent leaves a
    gap: where it dies before it has let its child go, that child waits for it for ever.
    """
    strays = []
    with contextlib.suppress(FileNotFoundError), open(_CHILDREN, "rb") as listed:
        strays = [pid for pid in map(int, listed.read().split()) if pid not in porters]
    for pid in strays:
        with contextlib.suppress(PermissionError):
            os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    return bool(strays)


def _reap(porters: dict[int, str]) -> list[str]:
    """Reap all who died, also what lost porters left; return the names of the porters."""
    names = []
    with contextlib.suppress(ChildProcessError):
        while pid := os.waitpid(-1, os.WNOHANG)[0]:
            if pid in porters:
                names.append(porters.pop(pid))
    return names
