"""Control groups, where the machine lets us have some: memory, pids and cpu of each sandbox.

A service that starts as root claims one group for each controller and hands it to the numeric
user it drops to (v1), or it owns a delegated v2 subtree. Else there are none, and rlimits and the
watch do what they can.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from agent_sandbox.express.isolation.limits import Limits

CONTROLLERS = ("memory", "pids", "cpu")
_PREFIX = "agent-sandbox-"
_OVERHEAD_PROCESSES = 8  # bubblewrap, its pid 1 and the porter stand in the group too
_CPU_PERIOD_US = 25_000  # short, since the porter is throttled together with its commands


@dataclass(frozen=True, slots=True)
class CgroupParents:
    """The directories under which each sandbox gets its own group.

    Attributes:
        version: 1 or 2; 0 where there is none.
        directories: Controller to directory; on v2 all are the same one.
    """

    version: int = 0
    directories: dict[str, str] = field(default_factory=dict)

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers that hold every sandbox."""
        return frozenset(self.directories)


def find_hierarchies(proc: Path = Path("/proc/self")) -> tuple[dict[str, Path], Path | None]:
    """Return the v1 directory of each controller, and the v2 directory, for this process."""
    mounts: dict[str, tuple[str, str]] = {}
    unified: tuple[str, str] | None = None
    for line in (proc / "mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if kind[0] == "cgroup":
            for name in kind[2].split(","):
                mounts[name] = (fields[3], fields[4])
        elif kind[0] == "cgroup2":
            unified = (fields[3], fields[4])
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in (proc / "cgroup").read_text().splitlines():
        number, names, path = line.split(":", 2)
        if number == "0" and unified is not None:
            v2 = _beneath(unified, path)
        for name in names.split(","):
            if name in CONTROLLERS and name in mounts:
                v1[name] = _beneath(mounts[name], path)
    return v1, v2


def _beneath(mount: tuple[str, str], path: str) -> Path:
    root, point = mount
    inner = path.removeprefix(root) if root != "/" else path
    return Path(point) / inner.lstrip("/")


def claim_parents(owner: int | None = None) -> CgroupParents:
    """Make the parent groups of this service, and give them to the user `owner`.

    Call it before rights are dropped. It removes the empty ones that services left which no
    longer run. Where nothing may be made the result has no controllers.
    """
    try:
        v1, v2 = find_hierarchies()
    except OSError:
        return CgroupParents()
    name = f"{_PREFIX}{os.getpid()}"
    made = {
        controller: str(parent / name)
        for controller, parent in v1.items()
        if _make(parent, name, owner)
    }
    if made:
        return CgroupParents(1, made)
    if v2 is not None:
        return _claim_unified(v2, name, owner)
    return CgroupParents()


def _claim_unified(parent: Path, name: str, owner: int | None) -> CgroupParents:
    # Controllers can be handed down only by a group that holds no process itself, so this works
    # where the service was given an empty, delegated parent (a systemd unit with Delegate=yes).
    try:
        available = (parent / "cgroup.controllers").read_text().split()
        wanted = [controller for controller in CONTROLLERS if controller in available]
        if not wanted or not _make(parent, name, owner):
            return CgroupParents()
        enable = " ".join(f"+{controller}" for controller in wanted)
        try:
            (parent / "cgroup.subtree_control").write_text(enable)
            (parent / name / "cgroup.subtree_control").write_text(enable)
        except OSError:
            (parent / name).rmdir()
            return CgroupParents()
    except OSError:
        return CgroupParents()
    return CgroupParents(2, dict.fromkeys(wanted, str(parent / name)))


def _make(parent: Path, name: str, owner: int | None) -> bool:
    try:
        for stale in parent.glob(f"{_PREFIX}*"):
            number = re.sub(r"\D", "", stale.name)
            if number and not os.path.exists(f"/proc/{number}"):
                remove_tree(str(stale))
        group = parent / name
        group.mkdir(exist_ok=True)
        if owner is not None:
            for path in (group, group / "cgroup.procs", group / "cgroup.subtree_control"):
                if path.exists():
                    os.chown(path, owner, owner)
    except OSError:
        return False
    return True


def enter_group(parents: CgroupParents, name: str, limits: Limits) -> list[str]:
    """Make the group `name` with its limits and move this process into it; return its parts.

    Raises:
        OSError: A group could not be made or entered; what was made is removed.
    """
    made: list[str] = []
    try:
        for directory in dict.fromkeys(parents.directories.values()):
            group = os.path.join(directory, name)
            os.mkdir(group)
            made.append(group)
        for controller, directory in parents.directories.items():
            group = os.path.join(directory, name)
            for file, value in _settings(parents.version, controller, limits):
                _write(os.path.join(group, file), value)
        for group in made:
            _write(os.path.join(group, "cgroup.procs"), "0")
    except OSError:
        for group in made:
            remove_tree(group)
        raise
    return made


def _settings(version: int, controller: str, limits: Limits) -> list[tuple[str, str]]:
    processes = str(limits.processes + _OVERHEAD_PROCESSES)
    quota = max(1000, int(limits.cpus * _CPU_PERIOD_US))
    memory = str(limits.memory_bytes)
    if controller == "pids":
        return [("pids.max", processes)]
    if controller == "memory":
        if version == 2:
            return [("memory.max", memory), ("memory.swap.max", "0")]
        return [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]
    if version == 2:
        return [("cpu.max", f"{quota} {_CPU_PERIOD_US}")]
    return [("cpu.cfs_period_us", str(_CPU_PERIOD_US)), ("cpu.cfs_quota_us", str(quota))]


def _write(path: str, value: str) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if path.endswith(("swap.max", "memsw.limit_in_bytes")):  # no swap accounting here
            return
        raise
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def release_parents(parents: CgroupParents) -> None:
    """Remove the empty parent groups, as far as this user may; the next claim does the rest."""
    for directory in dict.fromkeys(parents.directories.values()):
        remove_tree(directory)


def remove_tree(group: str) -> bool:
    """Remove an empty group with its empty children; False when a process is still in it."""
    try:
        with os.scandir(group) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    remove_tree(entry.path)
        os.rmdir(group)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
