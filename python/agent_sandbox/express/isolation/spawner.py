"""Express's side: one zygote for the service, one porter for each sandbox, commands in them.

How a command starts, and why so: the porter has entered the sandbox once and forks each command
from itself, so a command costs one fork and one exec. Entering anew for each one takes up to twice
as long, a bubblewrap for each three times (`benches/bench_isolation.py`), and neither would leave
the exit status to a parent that nobody inside can see. A helper program inside would be in reach
of the commands, and need an interpreter there or a second binary in the wheel.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from agent_sandbox.errors import (
    ConfigError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    UnsupportedError,
)
from agent_sandbox.express.isolation import cgroups, messages, seccomp
from agent_sandbox.express.isolation.config import SandboxConfig
from agent_sandbox.express.isolation.process import wait_readable, wait_writable
from agent_sandbox.express.isolation.sandbox import RunningSandbox

START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0
_PACKAGE = Path(__file__).resolve().parents[2]

# The zygote imports this folder's modules and nothing else of the package: the parents are
# empty stand-ins, so that neither the SDK nor a web framework is loaded into it.
_BOOTSTRAP = """
import sys, types
for name, path in {stand_ins!r}:
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
from agent_sandbox.express.isolation import cgroups, zygote
zygote.main({control}, {identity!r}, cgroups.CgroupParents({version}, {directories!r}))
"""


def find_bubblewrap() -> str | None:
    """Return the path of bubblewrap, or None: then commands are unsupported."""
    return shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin")


class Spawner:
    """The zygote, seen from Express. Not thread-safe; one event loop uses it."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._asking = asyncio.Lock()
        self.parents = cgroups.CgroupParents()

    @classmethod
    def launch(
        cls, *, user: int | None = None, group: int | None = None, use_cgroups: bool = True
    ) -> Spawner:
        """Start the zygote; its interpreter comes up (50 ms) while this returns.

        Call it before rights are dropped, since the interpreter may lie where the later user
        cannot read.

        Args:
            user: Numeric user that the zygote drops to. Needed as root.
            group: Its numeric group; by default the same number.
            use_cgroups: Whether control groups are claimed where the machine allows it.

        Raises:
            ConfigError: E6000, root without a user to drop to.
        """
        if os.geteuid() == 0 and not user:
            raise ConfigError
        identity = (user, user if group is None else group) if user else None
        parents = cgroups.claim_parents(user) if use_cgroups else cgroups.CgroupParents()
        ours, theirs = messages.open_pair()
        stand_ins = [
            ("agent_sandbox", str(_PACKAGE)),
            ("agent_sandbox.express", str(_PACKAGE / "express")),
            ("agent_sandbox.express.isolation", str(_PACKAGE / "express/isolation")),
        ]
        program = _BOOTSTRAP.format(
            stand_ins=stand_ins,
            control=theirs.fileno(),
            identity=identity,
            version=parents.version,
            directories=parents.directories,
        )
        with theirs:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and program
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={},
                cwd="/",
                pass_fds=[theirs.fileno()],
                # A Ctrl-C in the terminal, and whoever signals the group, means the server alone:
                # its sandboxes end after what is under way in them.
                start_new_session=True,
            )
        ours.setblocking(False)
        spawner = cls(process, ours)
        spawner.parents = parents
        return spawner

    async def start(
        self, config: SandboxConfig, *, deadline_s: float = START_TIMEOUT_S
    ) -> RunningSandbox:
        """Bring a sandbox up and return it, ready for commands.

        Raises:
            UnsupportedError: E5006, there is no bubblewrap, or no filter for this machine.
            SandboxUnavailableError: E5003, it did not come up; `.step` says where it stopped.
            SandboxTimeoutError: E5004, it did not come up in time; nothing of it is left.
        """
        bubblewrap = find_bubblewrap()
        if config.kind == "bubblewrap":
            if bubblewrap is None:
                raise UnsupportedError
            try:
                seccomp.build_filter()
            except NotImplementedError:
                raise UnsupportedError from None
        name = secrets.token_hex(8)
        request = {
            "name": name,
            "kind": config.kind,
            "network": config.network,
            "limits": config.limits.as_message(),
            "bubblewrap": bubblewrap,
        }
        ours, theirs = messages.open_pair()
        with theirs:
            try:
                await self._ask(request, [theirs.fileno(), config.directory_fd])
            except BaseException:
                ours.close()
                raise
        ours.setblocking(False)
        sandbox = RunningSandbox(ours, config)
        try:
            async with asyncio.timeout(deadline_s):
                await sandbox.ready
        except TimeoutError:
            await sandbox.stop()
            raise SandboxTimeoutError from None
        except BaseException:
            sandbox.disconnect()
            sandbox.release()
            raise
        return sandbox

    async def _ask(self, request: messages.Message, fds: list[int]) -> None:
        async with self._asking:
            while True:
                try:
                    messages.send(self._control, request, fds)
                except BlockingIOError:
                    await wait_writable(self._control.fileno())
                except OSError:
                    raise SandboxUnavailableError(step="zygote") from None
                else:
                    return

    async def close(self) -> None:
        """End the zygote. Sandboxes end with their own handles: stop them first."""
        self._control.close()
        if self._process.returncode is not None:
            return
        pidfd = os.pidfd_open(self._process.pid)
        try:
            if not await wait_readable(pidfd, _STOP_TIMEOUT_S):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)
        self._process.wait()
        cgroups.release_parents(self.parents)

    @property
    def alive(self) -> bool:
        """Whether sandboxes can still be started."""
        return self._process.poll() is None
