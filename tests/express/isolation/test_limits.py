"""Bombs, small ones: the limits of a sandbox hold, the sandbox and its neighbours live on."""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.support.express import wait_until

from agent_sandbox.express.isolation import (
    Limits,
    RunningSandbox,
    SandboxConfig,
    Spawner,
    measure_usage,
)
from agent_sandbox.express.isolation.doctor import choose_mechanisms, describe
from agent_sandbox.express.isolation.limits import resource_limits
from agent_sandbox.express.isolation.usage import maps_removed_files
from agent_sandbox.express.isolation.watch import watch_disk

MIB = 1_048_576
SMALL = {"memory_bytes": 96 * MIB, "processes": 30, "file_bytes": 2 * MIB, "cpus": 0.5}


@pytest.fixture
def small(start_service: Any, mode: str) -> Any:
    return start_service(mode).start(limits=SMALL)


def test_a_fork_bomb_stops_at_the_limit_and_the_sandbox_lives_on(small: Any) -> None:
    neighbour = small.service.start()
    bomb = "exec 3>&1 >/dev/null; for i in $(seq 100); do sleep 300 2>&1 3>&- & done"
    assert "fork" in small.shell(bomb)["err"].lower()
    assert neighbour.run("echo", "fine")["out"] == "fine\n"
    count = sum(name.isdigit() for name in small.run("ls", "/proc")["out"].split())
    assert count <= SMALL["processes"] + 5
    small.ask("kill_all")
    # Asked again from here: while the killed ones are on their way out, a shell may not fork.
    wait_until(lambda: small.run("pgrep", "-c", "sleep").get("out") == "1\n")


def test_one_greedy_process_is_stopped(small: Any) -> None:
    bomb = small.shell("head -c 300M /dev/zero | tail | wc -c")
    assert bomb["out"].strip() != str(300 * MIB)
    assert small.run("echo", "fine")["out"] == "fine\n"


def test_many_modest_processes_are_counted_together(small: Any) -> None:
    hog = "$x = 'x' x (40 << 20); $| = 1; print 'up'; sleep 60"
    for _ in range(3):
        small.ask("background", argv=["/usr/bin/perl", "-e", hog])
    gone = "until [ $(pgrep -c perl) -lt 3 ]; do sleep 0.05; done; echo ok"
    assert small.run("timeout", "20", "sh", "-c", gone)["out"] == "ok\n"


def test_a_file_grows_no_further_than_its_limit(small: Any) -> None:
    tried = small.shell("head -c 5M /dev/zero > f; stat -c %s f")
    assert int(tried["out"]) == SMALL["file_bytes"]


def test_shared_memory_is_bounded(small: Any) -> None:
    fill = "for i in $(seq 60); do head -c 2M /dev/zero > /dev/shm/$i; done; du -sm /dev/shm"
    assert int(small.shell(fill)["out"].split()[0]) <= 64


def test_a_sparse_file_of_a_terabyte_is_refused(small: Any) -> None:
    assert small.run("truncate", "-s", "1T", "big")["code"] != 0


def test_commands_can_raise_no_limit(small: Any) -> None:
    for flag in ("-u", "-f", "-n"):
        assert small.run("/bin/bash", "-c", f"ulimit -H {flag} unlimited")["code"] != 0


def test_without_a_cpu_group_commands_have_a_lower_priority(small: Any) -> None:
    groups = small.service.ask("facts")["controllers"]
    assert small.run("nice")["out"] == ("0\n" if "cpu" in groups else "10\n")


def test_a_killed_sandbox_leaves_no_control_group(start_service: Any) -> None:
    service = start_service("dropped" if os.geteuid() == 0 else "plain")
    box = service.start()
    groups = list(Path("/sys/fs/cgroup").glob(f"**/agent-sandbox-{service.process.pid}"))
    controllers = service.ask("facts")["controllers"]
    assert bool(groups) == bool(controllers)
    box.ask("stop")
    service.start().ask("stop")
    for group in groups:
        for _ in range(100):
            if not [child for child in group.iterdir() if child.is_dir()]:
                break
            service.start().ask("stop")
        else:
            pytest.fail("groups are left")


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def until_killed(sandbox: RunningSandbox, script: str, **watch: Any) -> int:
    watching = asyncio.create_task(watch_disk(sandbox, interval_s=0.05, **watch))
    try:
        process = await sandbox.spawn(["/bin/sh", "-c", script])
        async with asyncio.timeout(20):
            code = await process.wait()
        process.close()
        return code
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


DISK_BOMB = "for i in $(seq 400); do head -c 100k /dev/zero > f$i; sleep 0.01; done"
FILES_BOMB = "i=0; while [ $i -lt 40000 ]; do : > f$i; i=$((i+1)); done"


REMOVED_BOMB = (
    "exec 3> f; rm f; for i in $(seq 400); do head -c 100k /dev/zero >&3; sleep 0.01; done"
)


@pytest.mark.parametrize("bomb", [DISK_BOMB, FILES_BOMB, REMOVED_BOMB])
async def test_a_disk_or_inode_bomb_is_stopped(spawner: Spawner, directory: int, bomb: str) -> None:
    limits = Limits(disk_bytes=3 * MIB, files=500)
    sandbox = await spawner.start(SandboxConfig(directory, limits=limits))
    try:
        assert await until_killed(sandbox, bomb) == -9
        left = await sandbox.spawn(["/bin/sh", "-c", "rm -f f*; echo room"])
        assert await asyncio.to_thread(os.read, left.stdout, 100) == b"room\n"
        left.close()
    finally:
        await sandbox.stop()


async def test_a_sandbox_that_eats_the_hosts_last_room_is_stopped(
    sandbox: RunningSandbox,
) -> None:
    assert await until_killed(sandbox, DISK_BOMB, reserve_bytes=2**62) == -9


MAPPED = """
import mmap, os, time
with open("f", "w+b") as file:
    file.truncate(1 << 20)
    kept = mmap.mmap(file.fileno(), 4_096)
{then}
os.closerange(3, 100)
print("mapped", flush=True)
time.sleep(60)
"""


async def test_who_hides_files_in_its_memory_is_stopped_when_the_host_has_no_room(
    sandbox: RunningSandbox,
) -> None:
    program = MAPPED.format(then='os.remove("f")')
    assert await until_killed(sandbox, f"exec python3 -c '{program}'", reserve_bytes=2**62) == -9


async def test_a_mapped_file_that_has_a_name_hides_nothing(sandbox: RunningSandbox) -> None:
    process = await sandbox.spawn(["python3", "-c", MAPPED.format(then="")])
    assert await asyncio.to_thread(os.read, process.stdout, 100) == b"mapped\n"
    assert not await asyncio.to_thread(maps_removed_files, sandbox.root_fd)
    process.close()


async def test_the_watch_ends_with_its_sandbox(spawner: Spawner, directory: int) -> None:
    before = descriptors()
    sandbox = await spawner.start(SandboxConfig(directory))
    watching = asyncio.create_task(watch_disk(sandbox))
    await asyncio.sleep(0)
    await sandbox.stop()
    async with asyncio.timeout(10):
        await watching
    assert descriptors() == before


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(100_000))
    os.link(tmp_path / "a" / "b" / "file", tmp_path / "a" / "again")
    (tmp_path / "out").symlink_to("/usr")
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(2**40)
    return tmp_path


def measure(path: Path, *, stop_bytes: int = 2**62, stop_files: int = 2**62) -> Any:
    root = os.open(path, os.O_PATH | os.O_DIRECTORY)
    try:
        return measure_usage(root, stop_bytes=stop_bytes, stop_files=stop_files)
    finally:
        os.close(root)


def test_usage_counts_blocks_once_and_follows_no_link(tree: Path) -> None:
    usage = measure(tree)
    assert usage.files == 6
    assert 100_000 <= usage.allocated_bytes <= 100_000 + 8 * 4096


def test_usage_stops_at_its_bounds(tree: Path) -> None:
    assert measure(tree, stop_files=2).files == 3
    assert measure(tree, stop_bytes=5_000).allocated_bytes > 5_000


def test_a_directory_without_permissions_hides_nothing() -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as path:
        hidden = Path(path) / "hidden"
        hidden.mkdir()
        (hidden / "file").write_bytes(bytes(50_000))
        if os.geteuid() == 0:
            for entry in (Path(path), hidden, hidden / "file"):
                os.chown(entry, 61_234, 61_234)
        hidden.chmod(0o300)
        child = os.fork()
        if child == 0:
            if os.geteuid() == 0:
                os.setresuid(61_234, 61_234, 61_234)
            os._exit(0 if measure(Path(path)).allocated_bytes >= 50_000 else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert hidden.stat().st_mode & 0o777 == 0o300


def test_a_path_too_long_to_look_at_counts_as_over(tmp_path: Path) -> None:
    current = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=current)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=current)
        os.close(current)
        current = below
    os.close(current)
    assert measure(tmp_path, stop_files=1000).files == 1001


def test_resource_limits_are_those_that_no_group_holds() -> None:
    limits = Limits()
    bare = dict(resource_limits(limits, own_user_namespace=True, cgroups=frozenset()))
    assert bare[resource.RLIMIT_DATA] == limits.memory_bytes
    assert bare[resource.RLIMIT_NPROC] == limits.processes
    held = dict(resource_limits(limits, own_user_namespace=False, cgroups=frozenset({"memory"})))
    assert resource.RLIMIT_DATA not in held
    assert resource.RLIMIT_NPROC not in held


def test_doctor_names_what_is_in_force() -> None:
    findings = {finding.name: finding for finding in describe()}
    assert findings["isolation"].works
    assert findings["seccomp"].works
    assert set(findings) == {"isolation", "seccomp"} | {
        f"limit: {name}" for name in ("memory", "processes", "cpu", "disk")
    }


# The kernel counts descriptors that are under way for one user, and refuses every sender at last.
UNDER_WAY = """
import os, socket, time
kept = []
try:
    while True:
        kept += socket.socketpair(socket.AF_UNIX)
        kept[-1].setblocking(False)
        try:
            while True:
                socket.send_fds(kept[-1], [b"x"], [0] * 250)
        except BlockingIOError:
            pass
except OSError as error:
    print(os.strerror(error.errno), flush=True)
time.sleep(60)
"""


def test_descriptors_under_way_in_one_sandbox_end_no_other(start_service: Any, mode: str) -> None:
    service = start_service(mode)
    neighbour = service.start()
    works = neighbour.ask("background", argv=["/bin/sh", "-c", "echo up; sleep 60; echo done"])
    greedy = service.start(limits={"open_files": 1_000_000})
    started = greedy.ask("background", argv=["/usr/bin/python3", "-c", UNDER_WAY])
    assert started["first"].startswith("Too many")
    assert neighbour.run("echo", "fine")["out"] == "fine\n"
    assert service.start().run("echo", "new")["out"] == "new\n"
    assert neighbour.run("ps", "-o", "comm=", "-p", str(works["pid"]))["out"] == "sh\n"


def test_a_fork_that_fails_ends_no_sandbox_but_the_new_one(start_service: Any, mode: str) -> None:
    service = start_service(mode)
    neighbour = service.start()
    service.ask("let_fork", allowed=False)
    with pytest.raises(AssertionError, match="SandboxUnavailableError"):
        service.start()
    assert neighbour.run("echo", "fine")["out"] == "fine\n"
    service.ask("let_fork", allowed=True)
    assert service.start().run("echo", "new")["out"] == "new\n"


async def test_mechanisms_are_those_of_the_claimed_groups(spawner: Spawner) -> None:
    chosen = choose_mechanisms(spawner.parents)
    assert (chosen["memory"] == "rlimit+watch") == ("memory" not in spawner.parents.controllers)
