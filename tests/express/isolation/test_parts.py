"""The small parts: messages, control groups, the zygote's loss of imports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agent_sandbox.express.isolation import cgroups, messages
from agent_sandbox.express.isolation.limits import Limits


@pytest.mark.parametrize("size", [0, 4_000, 5_000, 2_000_000])
def test_a_message_arrives_whole_with_its_descriptors(size: int) -> None:
    ours, theirs = messages.open_pair()
    with ours, theirs, open("/dev/null", "rb") as null:
        before = len(os.listdir("/proc/self/fd"))
        messages.send(ours, {"text": "é" * size}, [null.fileno(), null.fileno()])
        received = messages.receive(theirs)
        assert received is not None
        message, fds = received
        assert message == {"text": "é" * size}
        assert [os.fstat(fd).st_rdev for fd in fds] == [os.fstat(null.fileno()).st_rdev] * 2
        assert not any(os.get_inheritable(fd) for fd in fds)
        messages.close_all(fds)
        assert len(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_peer_is_the_end_of_the_messages() -> None:
    ours, theirs = messages.open_pair()
    with theirs:
        ours.close()
        assert messages.receive(theirs) is None


@pytest.mark.parametrize("packet", [b"{", b"[]", b"@", b"\xff", b"3"])
def test_a_packet_that_is_no_message_is_refused_and_leaks_nothing(packet: bytes) -> None:
    ours, theirs = messages.open_pair()
    with ours, theirs:
        before = len(os.listdir("/proc/self/fd"))
        ours.send(packet)
        with pytest.raises(ValueError, match="not a message"):
            messages.receive(theirs)
        assert len(os.listdir("/proc/self/fd")) == before


def test_nothing_can_be_imported_after_the_fork_server_is_ready() -> None:
    program = (
        "from agent_sandbox.express.isolation import zygote; zygote.forget_imports()\n"
        "try:\n import wave\nexcept ImportError:\n print('refused')"
    )
    path = str(Path(cgroups.__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "refused\n"


def write_proc(folder: Path, mountinfo: str, groups: str) -> Path:
    folder.mkdir()
    (folder / "mountinfo").write_text(mountinfo)
    (folder / "cgroup").write_text(groups)
    return folder


def test_hierarchies_are_found_where_they_are_mounted(tmp_path: Path) -> None:
    proc = write_proc(
        tmp_path / "proc",
        "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "31 25 0:27 /outer /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        "32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
        "5:cpu,cpuacct:/outer/service\n4:memory:/a/b\n0::/user\n",
    )
    v1, v2 = cgroups.find_hierarchies(proc)
    assert v1 == {
        "memory": Path("/sys/fs/cgroup/memory/a/b"),
        "cpu": Path("/sys/fs/cgroup/cpu,cpuacct/service"),
    }
    assert v2 == Path("/sys/fs/cgroup/unified/user")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, {"memory.max": "1048576", "pids.max": "28", "cpu.max": "37500 25000"}),
        (
            1,
            {
                "memory.limit_in_bytes": "1048576",
                "pids.max": "28",
                "cpu.cfs_quota_us": "37500",
                "cpu.cfs_period_us": "25000",
            },
        ),
    ],
)
def test_a_group_gets_its_limits_before_a_process(version: int, expected: dict[str, str]) -> None:
    limits = Limits(memory_bytes=1_048_576, processes=20, cpus=1.5)
    found = {
        file: value
        for controller in cgroups.CONTROLLERS
        for file, value in cgroups._settings(version, controller, limits)
        if "sw" not in file
    }
    assert found == expected


def test_groups_that_cannot_be_made_are_none(tmp_path: Path) -> None:
    parents = cgroups.CgroupParents(1, {"memory": str(tmp_path / "missing")})
    with pytest.raises(FileNotFoundError):
        cgroups.enter_group(parents, "x", Limits())


def test_a_group_that_cannot_be_set_up_is_removed(tmp_path: Path) -> None:
    parents = cgroups.CgroupParents(1, {"memory": str(tmp_path)})
    with pytest.raises(FileNotFoundError):  # an ordinary directory grows no control files
        cgroups.enter_group(parents, "x", Limits())
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_service_left_is_swept(tmp_path: Path) -> None:
    stale = tmp_path / "agent-sandbox-4194305" / "child"  # no pid is that high
    stale.mkdir(parents=True)
    assert cgroups._make(tmp_path, f"agent-sandbox-{os.getpid()}", None)
    assert [entry.name for entry in tmp_path.iterdir()] == [f"agent-sandbox-{os.getpid()}"]
