"""People at a shell: the command as a real process, with a service of its own in the background."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.express import wait_until
from tests.support.mcp_servers import environment

WAIT_S = 60.0


@dataclass
class Shell:
    """Where commands run.

    Attributes:
        runtime: Their XDG_RUNTIME_DIR.
        files: A directory for local files, the current one of the commands.
    """

    runtime: Path
    files: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the commands."""
        return {**environment(), "XDG_RUNTIME_DIR": str(self.runtime), "COLUMNS": "100"}

    def command(self, *arguments: str) -> list[str]:
        """Return the command line."""
        return [sys.executable, "-m", "agent_sandbox", *arguments]

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command."""
        return subprocess.Popen(
            self.command(*arguments),
            env=self.environment,
            cwd=self.files,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def run(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment,
            cwd=self.files,
            input=stdin,
            capture_output=True,
            timeout=WAIT_S,
            check=False,
        )

    def says(self, *arguments: str, stdin: bytes = b"") -> str:
        """Run a command that succeeds and says nothing on standard error; return its output."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

    def on_terminal(self, *arguments: str) -> tuple[int, str]:
        """Run a command on a terminal of its own; return its status and what it shows there."""
        controller, terminal = pty.openpty()
        with os.fdopen(controller, "rb", buffering=0) as screen:
            process = subprocess.Popen(
                self.command(*arguments),
                env=self.environment,
                cwd=self.files,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
            )
            os.close(terminal)
            shown = b""
            with suppress(OSError):  # EIO: the other side is closed
                while select.select([screen], [], [], WAIT_S)[0]:
                    shown += screen.read(65_536)
            return process.wait(WAIT_S), shown.decode().strip()

    def create(self, *arguments: str) -> str:
        """Make a sandbox and return its id."""
        return self.says("create", *arguments).strip()

    @property
    def lock(self) -> Path:
        """The lock that whom the service serves holds."""
        return self.runtime / "agent-sandbox" / "lock"

    def services(self) -> list[int]:
        """Return the processes that have the lock open, which is none but the service."""
        return [pid for pid in _processes() if _has_open(pid, self.lock)]

    def end(self) -> None:
        """End all sandboxes and wait until the service has ended with them."""
        self.says("kill", "--all")
        wait_until(lambda: not self.services(), WAIT_S)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _has_open(pid: int, path: Path) -> bool:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
        return any(os.readlink(descriptor) == str(path) for descriptor in descriptors)
    except OSError:  # it has ended
        return False


def _make(files: Path) -> Iterator[Shell]:
    with tempfile.TemporaryDirectory(prefix="asb-people-") as runtime:
        shell = Shell(Path(runtime).resolve(), files)
        yield shell
        if shell.lock.exists():
            shell.end()
            with shell.lock.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell whose service ends after the test."""
    yield from _make(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell that the tests of a module share, with its service."""
    yield from _make(tmp_path_factory.mktemp("people"))


@pytest.fixture(scope="module")
def box(shared: Shell) -> str:
    """A sandbox of the shared shell."""
    return shared.create("--ttl", "3600")
