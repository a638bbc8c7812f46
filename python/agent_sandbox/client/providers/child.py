"""Starting Express as a process of its own on a unix socket: how it is called, and its word."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Literal

import agent_sandbox
from agent_sandbox.errors import SandboxUnavailableError

START_S = 10.0
"""Longest wait for the word of a child that starts; afterwards the first request waits for it."""

_STARTED = b"started"
_MAX_REASON_BYTES = 500

PASSED_ON = frozenset(
    {
        "AGENT_SANDBOX_GID",
        "AGENT_SANDBOX_LOG_LEVEL",
        "AGENT_SANDBOX_PURE_PYTHON",
        "AGENT_SANDBOX_UID",
        "HOME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "LD_LIBRARY_PATH",
        "PATH",
        "PYTHONHOME",
        "PYTHONPATH",
        "TMPDIR",
        "TZ",
        "VIRTUAL_ENV",
        "XDG_STATE_HOME",
    }
)
"""All of our environment that the child sees: what finds programs, modules and directories."""


Isolation = Literal["auto", "bubblewrap", "none"]
"""What commands run in, as `agent-sandbox serve --isolation` explains."""


@dataclass(frozen=True, slots=True)
class Options:
    """How an embedded service runs; those with the same options share one child.

    Attributes:
        isolation: `auto`: isolate, or offer files alone where this machine cannot; `bubblewrap`:
            refuse to start then; `none`: run commands without any isolation.
        network: Whether sandboxes use this machine's network, services on its loopback included.
    """

    isolation: Isolation = "auto"
    network: bool = False


def launch(
    listener: int, options: Options, **descriptors: int
) -> tuple[subprocess.Popen[bytes], FileIO]:
    """Start Express on a listening unix socket; return the child and where it will report.

    Args:
        listener: The descriptor of the socket.
        options: How it runs.
        descriptors: Further descriptors that it gets, by the names of its arguments.

    Raises:
        OSError: It could not be started.
    """
    told, tell = os.pipe()
    try:
        passed = {"fd": listener, "report_fd": tell, **descriptors}
        child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command(options, passed),
            pass_fds=tuple(passed.values()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=child_stderr(),
            env=_environment(),
            cwd="/",
            start_new_session=True,  # a Ctrl-C in the terminal is ours to handle
        )
    except OSError:
        os.close(told)
        raise
    finally:
        os.close(tell)
    return child, FileIO(told, "rb")


def child_stderr() -> int | None:
    """Return where a child's words go: to nobody, or to our own standard error for debugging."""
    return None if os.environ.get("AGENT_SANDBOX_DEBUG") else subprocess.DEVNULL


def require_started(report: FileIO) -> None:
    """Wait for the word of a child, ten seconds at most, and close where it reports.

    Raises:
        SandboxUnavailableError: E5003: it cannot run; `reason` is its word.
    """
    said = b""
    until = time.monotonic() + START_S
    poll = select.poll()
    poll.register(report, select.POLLIN)
    with report:
        while len(said) < _MAX_REASON_BYTES:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return
            piece = report.read(_MAX_REASON_BYTES)
            if not piece:
                break
            said += piece
    if said != _STARTED:
        reason = said.decode("ascii", "replace") or "it broke off at its start."
        raise SandboxUnavailableError(reason=f"The sandbox service: {reason}")


def command(options: Options, descriptors: Mapping[str, int]) -> list[str]:
    """Return the command line of a child."""
    # -P: a file named like a module in the current directory is not imported.
    line = [sys.executable, "-P", "-m", "agent_sandbox.express", "--isolation", options.isolation]
    if options.network:
        line.append("--allow-network")
    for name, descriptor in descriptors.items():
        line += [f"--{name.replace('_', '-')}", str(descriptor)]
    return line


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON}
    # Where the package was found by another way than the installation or PYTHONPATH, say where.
    root = str(Path(agent_sandbox.__file__).resolve().parent.parent)
    if Path(root).name not in ("site-packages", "dist-packages"):
        known = kept.get("PYTHONPATH", "").split(os.pathsep)
        if root not in known:
            kept["PYTHONPATH"] = os.pathsep.join([*filter(None, known), root])
    return kept
