"""The porter of one sandbox: starts bubblewrap, goes in, and starts commands on request.

It joins every namespace of the sandbox but the pid namespace, which by setns(2) concerns only
its children. So its commands are ordinary children of its own, reaped by it, while from inside
it cannot be seen, signalled or traced. It gives up all rights and puts itself under the filter
before the first command: a porter that was taken over could do no more than a command.

When its socket ends, or it dies, bubblewrap dies (die-with-parent), and with pid 1 the kernel ends
every process of the sandbox.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import socket
from typing import Any, NoReturn

from agent_sandbox.express.isolation import (
    cgroups,
    command,
    kernel,
    messages,
    processes,
    seccomp,
)
from agent_sandbox.express.isolation.bubblewrap import StartError, start_bubblewrap
from agent_sandbox.express.isolation.limits import Limits, bound_watches, resource_limits

_END_MS = 5_000
_WATCH_MS = 250
_NAMESPACES = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)


def main(
    sock: socket.socket, directory: int, request: dict[str, Any], parents: cgroups.CgroupParents
) -> NoReturn:
    """Bring the sandbox up, serve it until it ends, and exit; never returns.

    Args:
        sock: Messages with Express.
        directory: Descriptor of the sandbox's directory.
        request: What Express said about the sandbox.
        parents: Where the sandbox's control groups go.
    """
    try:
        kernel.die_with_parent(signal.SIGKILL)
        limits = Limits(**request["limits"])
        held = parents.controllers
        try:
            cgroups.enter_group(parents, request["name"], limits)
        except OSError:
            held = frozenset()
        if "cpu" not in held:
            os.nice(10)
        _prefer_for_oom()
        watched = limits.memory_bytes if "memory" not in held else None
        if request["kind"] == "bubblewrap":
            served = _enter(sock, directory, request)
        else:
            kernel.become_subreaper()
            served = Porter(sock, directory, None, own_processes=os.getpid())
        served.limits = resource_limits(
            limits, own_user_namespace=served.own_processes is None, cgroups=held
        )
        served.memory_bytes = watched
        served.process_count = limits.processes
        served.announce()
        served.serve()
    except BaseException as error:  # noqa: BLE001 - the edge of this process
        with contextlib.suppress(OSError, ValueError):
            step = str(error) if isinstance(error, StartError) else type(error).__name__
            number = error.errno if isinstance(error, OSError) else None
            messages.send(sock, {"event": "failed", "step": step, "errno": number})
        os._exit(1)
    os._exit(0)


def _prefer_for_oom() -> None:
    # The file belongs to root while a process is non-dumpable, as after a change of user.
    kernel.allow_tracing()
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"1000")
        finally:
            os.close(fd)


def _enter(sock: socket.socket, directory: int, request: dict[str, Any]) -> Porter:
    network = bool(request["network"])
    bubblewrap, child = start_bubblewrap(request["bubblewrap"], directory, network=network)
    os.close(directory)
    first = os.pidfd_open(child)
    kernel.forbid_tracing()
    settings = os.open("/proc/sys", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    kernel.enter_namespaces(first, _NAMESPACES | (0 if network else kernel.CLONE_NEWNET))
    os.chdir("/")
    bound_watches(settings)
    kernel.drop_privileges()
    kernel.install_seccomp(seccomp.build_filter())
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return Porter(sock, root, first, bubblewrap=bubblewrap)


class Porter:
    """Serves one sandbox: requests on the socket, exits of commands, the memory watch."""

    def __init__(
        self,
        sock: socket.socket,
        root: int,
        first: int | None,
        *,
        bubblewrap: int | None = None,
        own_processes: int | None = None,
    ) -> None:
        self.sock = sock
        self.root = root
        self.first = first
        self.own_processes = own_processes
        self.limits: list[tuple[int, int]] = []
        self.memory_bytes: int | None = None
        self.process_count = 0
        self.running: dict[int, tuple[int, int]] = {}  # pidfd -> command id, pid
        self.poller = select.poll()
        self.poller.register(sock, select.POLLIN)
        self.bubblewrap = None if bubblewrap is None else os.pidfd_open(bubblewrap)
        if self.bubblewrap is not None:
            self.poller.register(self.bubblewrap, select.POLLIN)

    def announce(self) -> None:
        """Tell Express that commands may come; hand over the porter, the root, and pid 1."""
        own = os.pidfd_open(os.getpid())
        fds = [own, self.root, *([] if self.first is None else [self.first])]
        messages.send(self.sock, {"event": "ready"}, fds)
        os.close(own)

    def serve(self) -> None:
        """Serve until the socket or the sandbox ends; then nothing of the sandbox runs."""
        try:
            while self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        watching = self.memory_bytes is not None and (
            self.running or processes.count(self.own_processes) > 0
        )
        events = self.poller.poll(_WATCH_MS if watching else None)
        if watching and self.memory_bytes is not None:
            counted = self.process_count if self.own_processes is not None else None
            processes.enforce(self.memory_bytes, counted, self.own_processes)
        for fd, _ in events:
            if fd == self.bubblewrap:
                return False
            if fd in self.running:
                self._reap(fd)
            elif fd == self.sock.fileno():
                received = messages.receive(self.sock)
                if received is None:
                    return False
                self._request(*received)
        if self.own_processes is not None:
            self._reap_orphans()
        return True

    def _request(self, request: dict[str, Any], fds: list[int]) -> None:
        try:
            if request["op"] == "spawn":
                self._spawn(request, fds)
            elif request["op"] == "signal":
                self._signal(request)
            elif request["op"] == "kill_all":
                processes.kill_tree(self.own_processes, everything=True)
        finally:
            messages.close_all(fds)

    def _spawn(self, request: dict[str, Any], fds: list[int]) -> None:
        number = int(request["id"])
        master: int | None = None
        slave: int | None = None
        try:
            if request.get("pty"):
                master, slave = command.open_terminal(request["pty"])
            pid = os.fork()
        except OSError as error:
            messages.close_all([fd for fd in (master, slave) if fd is not None])
            messages.send(
                self.sock, {"event": "refused", "id": number, "errno": error.errno or errno.EIO}
            )
            return
        if pid == 0:
            command.become(
                request,
                fds,
                slave,
                self.limits,
                None if self.own_processes is None else self.root,
            )
        try:
            self._hand_over(number, pid, master)
        except OSError as error:
            # Too many descriptors, here or under way between all who run as this user: one
            # command does not run, and the sandbox lives on.
            _kill_group(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            messages.send(self.sock, {"event": "refused", "id": number, "errno": error.errno})
        finally:
            messages.close_all([fd for fd in (master, slave) if fd is not None])

    def _hand_over(self, number: int, pid: int, master: int | None) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            handed = [pidfd] if master is None else [pidfd, master]
            messages.send(self.sock, {"event": "spawned", "id": number}, handed)
        except OSError:
            os.close(pidfd)
            raise
        self.running[pidfd] = (number, pid)
        self.poller.register(pidfd, select.POLLIN)

    def _signal(self, request: dict[str, Any]) -> None:
        wanted = signal.Signals(request["signal"])
        if request["scope"] == "tree":
            processes.kill_tree(self.own_processes, leader=int(request["pid"]))
            return
        for number, pid in self.running.values():
            if number == request["id"]:
                _kill_group(pid, wanted)  # not reaped yet, so the number is still its own

    def _reap(self, pidfd: int) -> None:
        number, pid = self.running.pop(pidfd)
        self.poller.unregister(pidfd)
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(status)
        messages.send(self.sock, {"event": "exited", "id": number, "code": code})

    def _reap_orphans(self) -> None:
        known = {pid for _, pid in self.running.values()}
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in known:
                    return
                os.waitpid(found.si_pid, 0)

    def _end(self) -> None:
        # The namespace cannot end before its dead are reaped, and ours to reap are the commands.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps those that die from here
        if self.first is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.first, signal.SIGKILL)
        else:
            processes.kill_tree(self.own_processes, everything=True)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # and these were dead before
                pass
        if self.first is not None:
            waiter = select.poll()
            waiter.register(self.first, select.POLLIN)
            waiter.poll(_END_MS)


def _kill_group(pid: int, wanted: int) -> None:
    """Signal a command of ours with its group; its number must not have been reaped yet."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(pid, wanted)
        except ProcessLookupError:  # it has no group of its own yet
            os.kill(pid, wanted)
