"""Commands start where and as they were asked to, and end completely."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.express import wait_until

from agent_sandbox.errors import (
    ArgumentError,
    ConfigError,
    FileMissingError,
    FilePermissionError,
    SandboxUnavailableError,
    UnsupportedError,
)
from agent_sandbox.express.isolation import (
    Process,
    RunningSandbox,
    SandboxConfig,
    Spawner,
)
from agent_sandbox.express.isolation import (
    spawner as spawner_module,
)

KILLS = int(os.environ.get("KILLS", "25"))


def drain(fd: int) -> str:
    parts = []
    with open(fd, "rb", buffering=0) as stream:
        while chunk := stream.read(65_536):
            parts.append(chunk)
    return b"".join(parts).decode()


async def output(process: Process) -> str:
    try:
        async with asyncio.timeout(20):
            text = await asyncio.to_thread(drain, process.detach("stdout"))
            await process.wait()
    finally:
        process.close()
    return text


async def first_line(process: Process) -> str:
    return (await asyncio.to_thread(os.read, process.stdout, 4096)).decode()


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


async def test_exit_status_and_signals_are_told_apart(sandbox: RunningSandbox) -> None:
    for script, code in (("exit 7", 7), ("kill -TERM $$", -15), ("true", 0), ("exit 255", 255)):
        process = await sandbox.spawn(["/bin/sh", "-c", script])
        assert await process.wait() == code
        process.close()


async def test_environment_and_directory_are_the_callers(sandbox: RunningSandbox) -> None:
    process = await sandbox.spawn(
        ["/bin/sh", "-c", "pwd; echo $GREETING $HOME"], env={"GREETING": "hi"}, cwd="/var"
    )
    assert await output(process) == "/var\nhi /home/user\n"


async def test_large_arguments_arrive_whole(sandbox: RunningSandbox) -> None:
    word = "xé" * 40_000
    assert await output(await sandbox.spawn(["echo", word, word])) == f"{word} {word}\n"


async def test_standard_input_is_a_pipe_or_empty(sandbox: RunningSandbox) -> None:
    assert await output(await sandbox.spawn(["cat"])) == ""
    process = await sandbox.spawn(["cat"], stdin=True)
    os.write(process.stdin, b"through")
    os.close(process.detach("stdin"))
    assert await output(process) == "through"


async def test_a_terminal_is_the_sandboxes_own(sandbox: RunningSandbox) -> None:
    process = await sandbox.spawn(["/bin/sh", "-c", "tty; stty size; ps -o tty= $$"], pty=(31, 97))
    os.set_blocking(process.terminal, True)
    said = b""
    with contextlib.suppress(OSError):  # EIO: how Linux says that nobody holds the other side
        while True:
            said += await asyncio.to_thread(os.read, process.terminal, 4096)
    assert said.split() == [b"/dev/pts/0", b"31", b"97", b"pts/0"]
    assert await process.wait() == 0
    process.close()


async def test_commands_of_one_sandbox_reach_each_other(sandbox: RunningSandbox) -> None:
    script = "mkfifo /tmp/f; sleep 60 & echo $!; wait $!"
    first = await sandbox.spawn(["/bin/sh", "-c", script])
    number = (await first_line(first)).strip()
    assert await output(await sandbox.spawn(["/bin/sh", "-c", f"kill {number}; ls /tmp"])) == "f\n"
    assert await first.wait() == 143
    first.close()


@pytest.mark.parametrize(
    ("argv", "cwd", "error", "step"),
    [
        (["/no/such"], "/", FileMissingError, "exec"),
        (["no-such"], "/", FileMissingError, "exec"),
        (["/etc/passwd"], "/", FilePermissionError, "exec"),
        (["true"], "/nowhere", FileMissingError, "cwd"),
        (["true"], "/etc/passwd", FileMissingError, "cwd"),
        (["true", "é" * 100_000], "/", ArgumentError, "exec"),  # over 128 KiB in one argument
    ],
)
async def test_what_cannot_start_is_a_clear_error(
    sandbox: RunningSandbox, argv: list[str], cwd: str, error: type[Exception], step: str
) -> None:
    before = descriptors()
    with pytest.raises(error) as caught:
        await sandbox.spawn(argv, cwd=cwd)
    assert vars(caught.value)["step"] == step
    assert descriptors() == before


@pytest.mark.parametrize(
    "arguments",
    [
        {"argv": []},
        {"argv": ["a\0b"]},
        {"argv": ["a\udcff"]},
        {"argv": ["a"], "cwd": "/\0"},
        {"argv": ["a"], "env": {"A=B": ""}},
        {"argv": ["a", *["b" * 100_000] * 30]},
    ],
)
async def test_arguments_that_can_never_work_are_refused(
    sandbox: RunningSandbox, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ArgumentError):
        await sandbox.spawn(**arguments)


async def test_a_hundred_starts_at_once_all_answer(sandbox: RunningSandbox) -> None:
    async def one(number: int) -> str:
        return await output(await sandbox.spawn(["echo", str(number), "y" * 20_000]))

    answers = await asyncio.gather(*(one(number) for number in range(100)))
    assert [int(text.split()[0]) for text in answers] == list(range(100))


async def test_a_cancelled_start_leaves_no_process_and_no_descriptor(
    sandbox: RunningSandbox,
) -> None:
    await output(await sandbox.spawn(["true"]))
    before = descriptors()
    for turns in range(30):
        task = asyncio.create_task(sandbox.spawn(["sleep", "300"]))
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            process = await task  # it was faster
            process.kill_tree()
            await process.wait()
            process.close()
    script = "while pgrep -x sleep | grep -qvx 1; do :; done; echo none"  # pid 1 is a sleep too
    assert await output(await sandbox.spawn(["/bin/sh", "-c", script])) == "none\n"
    assert descriptors() == before
    assert not sandbox._early
    assert not sandbox._disowned


async def test_a_start_cancelled_while_the_command_runs_already_takes_all_of_it_along(
    sandbox: RunningSandbox,
) -> None:
    script = "while pgrep -x sleep | grep -qvx 1; do :; done; echo none"
    for turns in range(40):
        line = "sleep 300 & sleep 300 & wait"
        task = asyncio.create_task(sandbox.spawn(["/bin/sh", "-c", line]))
        for _ in range(1 + turns % 8):
            await asyncio.sleep(0)
        time.sleep(0.01)  # noqa: ASYNC251 - the command gets ahead of this loop
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            process = await task
            process.kill_tree()
            await process.wait()
            process.close()
    assert await output(await sandbox.spawn(["/bin/sh", "-c", script])) == "none\n"
    assert not sandbox._disowned


async def test_killing_the_tree_takes_what_left_the_group(sandbox: RunningSandbox) -> None:
    script = "setsid sh -c 'sleep 300 & setsid sleep 301' & set -m; sleep 302 & echo up; wait"
    process = await sandbox.spawn(["/bin/bash", "-c", script])
    assert await first_line(process) == "up\n"
    seen = "until [ $(pgrep -c -f '^sleep 30[0-2]') = 3 ]; do :; done; echo all"
    assert await output(await sandbox.spawn(["/bin/sh", "-c", seen])) == "all\n"
    process.kill_tree()
    assert await process.wait() == -signal.SIGKILL
    gone = "while pgrep -f '^sleep 30[0-2]'; do :; done >/dev/null; echo none"
    assert await output(await sandbox.spawn(["/bin/sh", "-c", gone])) == "none\n"
    process.close()


async def test_a_group_is_signalled_as_a_whole(sandbox: RunningSandbox) -> None:
    process = await sandbox.spawn(["/bin/sh", "-c", "sleep 300 & echo up; wait"])
    await first_line(process)
    process.send_signal(signal.SIGTERM, "group")
    assert await process.wait() == -signal.SIGTERM
    assert await asyncio.to_thread(os.read, process.stdout, 1) == b""
    process.close()


async def test_a_command_that_forks_and_leaves_lives_until_the_sandbox_ends(
    sandbox: RunningSandbox,
) -> None:
    script = "setsid sh -c 'echo up; exec sleep 300 >/dev/null 2>&1' & exit 0"
    process = await sandbox.spawn(["/bin/sh", "-c", script])
    assert await process.wait() == 0
    assert await output(process) == "up\n"
    assert await output(await sandbox.spawn(["pgrep", "-c", "-f", "^sleep 300"])) == "1\n"
    sandbox.kill_all()
    gone = "while pgrep -f '^sleep 300'; do :; done >/dev/null; echo none"
    assert await output(await sandbox.spawn(["/bin/sh", "-c", gone])) == "none\n"


async def test_a_stopped_sandbox_has_no_process_left(spawner: Spawner, directory: int) -> None:
    before = descriptors()
    sandbox = await spawner.start(SandboxConfig(directory))
    process = await sandbox.spawn(["/bin/sh", "-c", "setsid sleep 300 & echo up; wait"])
    await first_line(process)
    handle = os.dup(process.pidfd)
    await sandbox.stop()
    assert await process.wait() == -signal.SIGKILL
    assert select.select([handle], [], [], 0)[0] == [handle]
    os.close(handle)
    process.close()
    assert sandbox.ended.is_set()
    with pytest.raises(SandboxUnavailableError):
        await sandbox.spawn(["true"])
    await sandbox.stop()
    assert descriptors() == before


async def test_a_lost_porter_takes_its_sandbox_along(sandbox: RunningSandbox) -> None:
    process = await sandbox.spawn(["/bin/sh", "-c", "setsid sleep 300 & echo up; wait"])
    await first_line(process)
    signal.pidfd_send_signal(sandbox._porter_fd, signal.SIGKILL)
    async with asyncio.timeout(10):
        await sandbox.ended.wait()
    assert await process.wait() == -signal.SIGKILL
    assert select.select([sandbox._first_fd], [], [], 10)[0] == [sandbox._first_fd]
    process.close()


async def test_a_lost_porter_without_isolation_leaves_no_process_either(
    spawner: Spawner, directory: int
) -> None:
    sandbox = await spawner.start(SandboxConfig(directory, kind="none"))
    process = await sandbox.spawn(["/bin/sh", "-c", "setsid sleep 300 & echo $!; wait"])
    left = os.pidfd_open(int(await first_line(process)))
    signal.pidfd_send_signal(sandbox._porter_fd, signal.SIGKILL)
    assert select.select([left], [], [], 10)[0] == [left]
    os.close(left)
    process.close()
    await sandbox.stop()


async def test_a_porter_that_is_killed_while_it_starts_a_sandbox_leaves_no_process(
    spawner: Spawner, make_directory: Callable[[], int]
) -> None:
    zygote = spawner._process.pid
    for tenths_ms in range(0, 200, 200 // KILLS):
        directory = make_directory()
        start = asyncio.ensure_future(spawner.start(SandboxConfig(directory)))
        await asyncio.to_thread(wait_until, lambda: children(zygote))
        await asyncio.sleep(tenths_ms / 10_000)  # the moment that is tried
        os.kill(children(zygote)[0], signal.SIGKILL)
        with contextlib.suppress(SandboxUnavailableError):
            await (await start).stop()
        os.close(directory)
        await asyncio.to_thread(wait_until, lambda: not children(zygote))


def children(pid: int) -> list[int]:
    """Return the children of a process of one thread."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_a_sandbox_that_cannot_come_up_says_where_it_stopped(
    spawner: Spawner, tmp_path: Path
) -> None:
    empty = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(SandboxUnavailableError) as caught:
        await spawner.start(SandboxConfig(empty))
    os.close(empty)
    assert vars(caught.value)["step"] == "directory"


async def test_a_directory_with_links_for_mount_points_is_refused(
    spawner: Spawner, directory: int, tmp_path: Path
) -> None:
    os.rmdir("dev", dir_fd=directory)
    os.symlink(tmp_path, "dev", dir_fd=directory)
    with pytest.raises(SandboxUnavailableError) as caught:
        await spawner.start(SandboxConfig(directory))
    assert vars(caught.value)["step"] == "directory"
    assert os.listdir(tmp_path) == []


async def test_what_bubblewrap_says_stays_out_of_the_message(
    spawner: Spawner, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawner_module, "find_bubblewrap", lambda: "/bin/false")
    with pytest.raises(SandboxUnavailableError) as caught:
        await spawner.start(SandboxConfig(directory))
    assert vars(caught.value)["step"] == "bubblewrap"


async def test_sixty_sandboxes_at_once_come_up_and_go(
    spawner: Spawner, make_directory: Callable[[], int]
) -> None:
    before = descriptors()

    async def one() -> str:
        fd = make_directory()
        sandbox = await spawner.start(SandboxConfig(fd), deadline_s=60)
        os.close(fd)
        try:
            return await output(await sandbox.spawn(["echo", "up"]))
        finally:
            await sandbox.stop()

    assert set(await asyncio.gather(*(one() for _ in range(60)))) == {"up\n"}
    assert descriptors() == before


async def test_the_hosts_network_is_there_only_when_it_is_allowed(
    spawner: Spawner, directory: int
) -> None:
    sandbox = await spawner.start(SandboxConfig(directory, network=True))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        script = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo through"
        assert await output(await sandbox.spawn(["/bin/bash", "-c", script])) == "through\n"
    await sandbox.stop()


async def test_without_bubblewrap_commands_are_unsupported(
    spawner: Spawner, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawner_module, "find_bubblewrap", lambda: None)
    with pytest.raises(UnsupportedError):
        await spawner.start(SandboxConfig(directory))
    sandbox = await spawner.start(SandboxConfig(directory, kind="none"))
    path = os.readlink(f"/proc/self/fd/{directory}")
    assert await output(await sandbox.spawn(["pwd"])) == f"{path}/home/user\n"
    await sandbox.stop()


async def test_without_isolation_the_environment_is_clean_and_the_end_complete(
    spawner: Spawner, directory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_SECRET", "canary")
    sandbox = await spawner.start(SandboxConfig(directory, kind="none"))
    assert "canary" not in await output(await sandbox.spawn(["env"]))
    script = "(setsid sleep 300 & echo $!); exec 1>&-; sleep 301"
    process = await sandbox.spawn(["/bin/sh", "-c", script])
    daemon = os.pidfd_open(int(await first_line(process)))
    await sandbox.stop()
    assert select.select([daemon], [], [], 5)[0] == [daemon]
    assert await process.wait() == -signal.SIGKILL
    os.close(daemon)
    process.close()


@pytest.mark.parametrize("user", [None, 0])
def test_a_root_service_must_drop(monkeypatch: pytest.MonkeyPatch, user: int | None) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(ConfigError):
        Spawner.launch(user=user)


async def test_the_zygote_shows_no_arguments_and_ends_with_the_service(
    spawner: Spawner, directory: int
) -> None:
    zygote = Path(f"/proc/{spawner._process.pid}")
    await (await spawner.start(SandboxConfig(directory))).stop()  # so it is past its beginning
    assert (zygote / "comm").read_text() == "sandbox\n"
    assert (zygote / "cmdline").read_bytes().strip(b"\0") == b""
    assert (zygote / "environ").read_bytes() == b""
    await spawner.close()
    assert spawner._process.returncode == 0
    assert not spawner.alive


async def test_the_way_to_the_directory_may_be_closed(
    spawner: Spawner, directory: int, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.rename(os.readlink(f"/proc/self/fd/{directory}"), closed / "root")
    closed.chmod(0)  # for a plain user; the user of a root service cannot pass tmp_path anyway
    sandbox = await spawner.start(SandboxConfig(directory))
    try:
        script = "echo in > f; cat ~/f; ls -d /home; ls -a /mnt"
        shown = await output(await sandbox.spawn(["/bin/sh", "-c", script]))
        assert shown == "in\n/home\n"
    finally:
        await sandbox.stop()
        closed.chmod(0o700)
