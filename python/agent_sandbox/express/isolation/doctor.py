"""What isolation this machine offers, in words for `agent-sandbox doctor`."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass
from pathlib import Path

from agent_sandbox.express.isolation import cgroups, seccomp
from agent_sandbox.express.isolation.limits import Mechanism
from agent_sandbox.express.isolation.spawner import find_bubblewrap

_PROBE_TIMEOUT_S = 10.0
_NOBODY = 65_534


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        name: What it is.
        works: Whether it is in force.
        text: What was found.
        remedy: How to mend it; empty where it works.
    """

    name: str
    works: bool
    text: str
    remedy: str = ""


def choose_mechanisms(parents: cgroups.CgroupParents) -> dict[str, Mechanism]:
    """Return which mechanism holds each resource, given the control groups that were claimed."""
    group: Mechanism = "cgroup2" if parents.version == 2 else "cgroup1"
    return {
        "memory": group if "memory" in parents.controllers else "rlimit+watch",
        "processes": group if "pids" in parents.controllers else "rlimit",
        "cpu": group if "cpu" in parents.controllers else "priority",
        "disk": "rlimit+watch",
    }


def describe() -> list[Finding]:
    """Look at everything that isolation needs; blocks for a moment, leaves nothing behind."""
    findings = [_bubblewrap(), _filter()]
    parents = cgroups.claim_parents()
    cgroups.release_parents(parents)
    for resource, mechanism in choose_mechanisms(parents).items():
        weak = mechanism in ("rlimit+watch", "priority") and resource != "disk"
        remedy = "Start the service as root, or under systemd with Delegate=yes." if weak else ""
        findings.append(Finding(f"limit: {resource}", True, mechanism, remedy))
    return findings


def isolation_works() -> bool:
    """Look whether bubblewrap starts a sandbox here; blocks for a moment."""
    return _bubblewrap().works


def _filter() -> Finding:
    machine = platform.machine()
    if machine not in seccomp.MACHINES:
        return Finding("seccomp", False, f"no filter for {machine}", "Use x86_64 or aarch64.")
    if not Path("/proc/sys/kernel/seccomp").exists():
        return Finding("seccomp", False, "the kernel has no filters", "Enable CONFIG_SECCOMP.")
    return Finding("seccomp", True, f"filter for {machine}")


def _bubblewrap() -> Finding:
    name = "isolation"
    path = find_bubblewrap()
    if path is None:
        return Finding(name, False, "bubblewrap is missing", "Install the package bubblewrap.")
    identity = _NOBODY if os.geteuid() == 0 else None
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            [
                *(path, "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
                *("--ro-bind", "/usr", "/usr", "--proc", "/proc", "--dev", "/dev"),
                *("--symlink", "usr/bin", "/bin", "--symlink", "usr/lib", "/lib"),
                *("--symlink", "usr/lib64", "/lib64", "--", "/bin/true"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            cwd="/",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
            user=identity,
            group=identity,
            extra_groups=None if identity is None else [],
        )
    except (OSError, subprocess.TimeoutExpired):
        done = None
    if done is not None and done.returncode == 0:
        return Finding(name, True, "bubblewrap")
    remedy = "Allow unprivileged user namespaces (kernel.unprivileged_userns_clone=1)."
    switch = Path("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
    if switch.exists() and switch.read_text().strip() == "1":
        remedy = "Give bwrap an AppArmor profile with `userns,` or set " + switch.name + "=0."
    return Finding(name, False, "bubblewrap does not start a sandbox", remedy)
