"""From inside a sandbox nothing of the host can be seen, reached, traced or changed."""

from __future__ import annotations

import os
import select
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

Box = Any


def test_a_command_has_no_capability_and_can_gain_none(box: Box) -> None:
    status = dict(
        line.split(":\t", 1) for line in box.shell("cat /proc/self/status")["out"].splitlines()
    )
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_a_command_is_an_ordinary_user_and_no_host_user(box: Box) -> None:
    assert box.shell("id -u; id -g; hostname")["out"].split() == ["1000", "1000", "sandbox"]
    assert box.service.ask("facts")["uid"] == box.service.user != 0


def test_a_command_has_nothing_of_the_servers_environment(box: Box) -> None:
    names = {line.split("=")[0] for line in box.run("env")["out"].splitlines()}
    assert names == {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "PWD"}
    assert "canary" not in box.shell("cat /proc/[0-9]*/environ")["out"]


def test_a_command_has_three_descriptors(box: Box) -> None:
    assert box.shell("ls /proc/$$/fd")["out"].split() == ["0", "1", "2"]
    assert box.shell("ls /proc/1/fd")["out"].split() == ["0", "1", "2"]


def test_a_command_sees_only_processes_of_its_sandbox(box: Box) -> None:
    pids = [int(name) for name in box.run("ls", "/proc")["out"].split() if name.isdigit()]
    assert 1 in pids
    assert len(pids) <= 3
    commands = box.shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")["out"]
    assert "sleep infinity" in commands
    assert str(box.directory) not in commands


def test_mounts_name_nothing_but_the_system_and_the_sandbox(box: Box) -> None:
    sources = {
        line.split()[3] for line in box.shell("cat /proc/self/mountinfo")["out"].splitlines()
    }
    allowed = {"/", "/usr", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl/certs"}
    devices = {"/null", "/zero", "/full", "/random", "/urandom", "/tty"}
    assert sources - allowed - devices <= {str(box.directory)}
    assert "agent-sandbox" not in box.shell("cat /proc/self/cgroup")["out"]


def test_files_of_the_host_do_not_exist(box: Box) -> None:
    canary = box.service.base / "host-file"
    canary.write_text("host")
    for path in (canary, Path("/etc/shadow"), Path("/root"), Path("/proc/1/root") / "root"):
        assert box.run("cat", str(path))["code"] != 0
    assert box.shell("cat /proc/self/root/etc/hostname")["out"] == "sandbox\n"
    link = f"ln -sfn {canary} /tmp/link; cat /tmp/link"
    assert "No such file" in box.shell(link)["err"]


@pytest.mark.parametrize(
    "path", ["/usr/x", "/usr/bin/x", "/dev/x", "/etc/alternatives/x", "/etc/x"]
)
def test_the_system_is_read_only(box: Box, path: str) -> None:
    assert "Read-only" in box.run("touch", path)["err"]


@pytest.mark.parametrize("name", ["keys", "key-users", "kcore", "timer_list"])
def test_what_proc_tells_of_the_host_is_closed(box: Box, name: str) -> None:
    assert box.run("cat", f"/proc/{name}")["code"] != 0


def test_no_new_namespace_and_no_mount(box: Box) -> None:
    for argv in (
        ["unshare", "--user", "true"],
        ["unshare", "--user", "--map-root-user", "--mount", "true"],
        ["unshare", "--pid", "--fork", "true"],
        ["mount", "-t", "tmpfs", "none", "/mnt"],
        ["umount", "/usr"],
        ["chroot", "/", "true"],
    ):
        assert box.run(*argv)["code"] != 0


def test_set_user_id_programs_have_no_power(box: Box) -> None:
    script = "cp /usr/bin/id /tmp/id && chmod 6755 /tmp/id && /tmp/id -u"
    assert box.shell(script)["out"] == "1000\n"
    assert "nosuid" in box.shell("grep ' / rw' /proc/self/mountinfo")["out"]


def test_there_is_no_network_but_its_own_loopback(box: Box) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        tried = box.run("/bin/bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}")
        assert "Connection refused" in tried["err"]
        assert select.select([listener], [], [], 0)[0] == []
    interfaces = box.shell("tail -n +3 /proc/net/dev")["out"].split(":")[0].strip()
    assert interfaces == "lo"
    assert "bound-outside" not in _with_abstract_socket(box)


def _with_abstract_socket(box: Box) -> str:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0bound-outside-{os.getpid()}")
        return str(box.shell("cat /proc/net/unix")["out"])


def test_everything_in_a_sandbox_can_be_killed_from_inside_but_the_sandbox(box: Box) -> None:
    box.shell("kill -9 1; kill -15 1; kill -9 -1")
    assert box.run("echo", "alive")["out"] == "alive\n"


def test_the_service_has_no_number_inside(box: Box) -> None:
    host = box.service.process.pid
    script = f"kill -0 {host} || echo unknown"
    assert box.shell(script)["out"] == "unknown\n"


def test_files_and_commands_see_one_tree(box: Box) -> None:
    for folder in ("tmp", "home/user", "var/tmp", "dev/shm"):
        path = f"/{folder}/a"
        box.ask("write", path=path, text="from the service")
        assert box.run("cat", path)["out"] == "from the service"
        box.shell(f"echo from a command > {path}")
        assert box.ask("read", path=path)["text"] == "from a command\n"
        box.shell(f"rm {path}")
        assert box.ask("read", path=path)["error"] == "FileNotFoundError"
    assert box.ask("read", path="/etc/hostname")["text"] == "sandbox\n"


def test_orphans_are_reaped(box: Box) -> None:
    box.shell("for i in 1 2 3; do (sh -c 'sh -c true &' &); done")
    states = box.shell("sleep 0.1; cat /proc/[0-9]*/stat | cut -d' ' -f3")["out"].split()
    assert "Z" not in states


def test_a_killed_service_takes_its_sandboxes_along(start_service: Any, mode: str) -> None:
    service = start_service(mode)
    box = service.start()
    kept = box.ask("background", argv=["/bin/sh", "-c", "echo up; exec sleep 300"])
    daemon = box.ask(
        "background", argv=["/bin/sh", "-c", "setsid sh -c 'echo up; exec sleep 300' & wait"]
    )
    handles = [os.pidfd_open(answer["host_pid"]) for answer in (kept, daemon)]
    assert os.stat(f"/proc/{kept['host_pid']}").st_uid == service.user
    service.process.send_signal(signal.SIGKILL)
    for handle in handles:
        assert select.select([handle], [], [], 10)[0] == [handle]
        os.close(handle)
