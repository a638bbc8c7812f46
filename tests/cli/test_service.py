"""One service for each user: who starts it, who shares it, and when it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.conftest import WAIT_S, Shell
from tests.support.express import wait_until

from agent_sandbox.client.providers import user
from agent_sandbox.client.providers.child import Options
from agent_sandbox.errors import ConfigError, SandboxNotFoundError, SandboxTimeoutError


def test_what_one_command_made_another_finds_and_the_service_ends_with_the_last_sandbox(
    shell: Shell,
) -> None:
    first, second = shell.create(), shell.create()
    (service,) = shell.services()
    assert [line.split("\t")[0] for line in shell.says("list").splitlines()] == [first, second]
    assert shell.says("kill", first) == f"{first}\n"
    assert shell.says("list").startswith(second)
    assert shell.services() == [service]
    assert shell.says("kill", second) == f"{second}\n"
    wait_until(lambda: not shell.services(), WAIT_S)
    assert shell.says("list") == ""
    assert shell.services() == []


def test_a_sandbox_ends_at_its_time_and_the_service_with_it(shell: Shell) -> None:
    shell.create("--ttl", "1")
    wait_until(lambda: not shell.services(), WAIT_S)


def test_many_that_start_at_once_share_one_service(shell: Shell) -> None:
    starting = [shell.start("create") for _ in range(6)]
    made = set()
    for process in starting:
        out, err = process.communicate(timeout=WAIT_S)
        assert (process.returncode, err) == (0, b"")
        made.add(out.decode().strip())
    assert len(shell.services()) == 1
    assert {line.split("\t")[0] for line in shell.says("list").splitlines()} == made


def test_making_and_ending_in_a_row_never_meets_a_service_that_is_just_ending(
    shell: Shell,
) -> None:
    for _ in range(5):
        shell.says("kill", shell.create())


def test_what_a_killed_service_left_is_replaced(shell: Shell) -> None:
    lost = shell.create()
    (service,) = shell.services()
    os.kill(service, signal.SIGKILL)
    wait_until(lambda: not shell.services(), WAIT_S)
    assert (shell.runtime / "agent-sandbox" / "s").exists()
    assert shell.says("list") == ""
    assert shell.run("ls", lost).returncode == 6
    assert shell.create() in shell.says("list")


def test_the_socket_and_its_directory_are_private(shell: Shell) -> None:
    shell.create()
    for path, mode in ((shell.lock.parent, 0o700), (shell.lock.parent / "s", 0o600)):
        assert path.stat().st_mode & 0o777 == mode
        assert path.stat().st_uid == os.geteuid()


def test_the_service_ends_at_sigterm_and_not_with_the_terminal(shell: Shell) -> None:
    shell.create()
    (service,) = shell.services()
    assert os.getsid(service) != os.getsid(0)
    os.kill(service, signal.SIGINT)
    assert len(shell.says("list").splitlines()) == 1
    os.kill(service, signal.SIGTERM)
    wait_until(lambda: not shell.services(), WAIT_S)


def test_without_a_service_nothing_but_create_starts_one(shell: Shell) -> None:
    assert shell.says("list") == ""
    assert shell.says("list", "--json") == "[]\n"
    assert shell.says("kill", "--all") == ""
    for arguments in (["ls", "iabcdef"], ["kill", "iabcdef"], ["run", "iabcdef", "true"]):
        done = shell.run(*arguments)
        assert (done.returncode, done.stdout) == (6, b"")
        assert b"no such sandbox" in done.stderr
    assert shell.services() == []


def test_a_service_runs_as_its_starter_said_and_another_wish_is_refused(shell: Shell) -> None:
    sandbox = shell.create("--isolation", "none", "--allow-network")
    ours = Path("/proc/self/ns/net").stat().st_ino
    seen = shell.says("run", sandbox, "--", "stat", "-Lc%i", "/proc/self/ns/net")
    assert int(seen) == ours
    shell.create()
    shell.create("--isolation", "none", "--allow-network")
    done = shell.run("create", "--isolation", "bubblewrap")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"runs with other options" in done.stderr


def test_why_a_service_does_not_start_is_told(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Shell, "environment", {**shell.environment, "AGENT_SANDBOX_LOG_LEVEL": "none"}
    )
    done = shell.run("create")
    assert (done.returncode, done.stdout) == (9, b"")
    assert done.stderr.startswith(b"agent-sandbox: The sandbox service: AGENT_SANDBOX_LOG_LEVEL is")
    assert done.stderr.count(b"\n") == 1


# --- Where the users of a service meet ---------------------------------------------------------


@pytest.fixture
def common(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place for users without a runtime directory; its name for us is not taken yet."""
    monkeypatch.setattr(user, "COMMON", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path / f"agent-sandbox-{os.geteuid()}"


def test_without_a_private_runtime_directory_the_place_is_made_for_the_user_alone(
    common: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for runtime in ("", "relative", str(tmp_path / "missing"), str(tmp_path / "open")):
        (tmp_path / "open").mkdir(mode=0o755, exist_ok=True)
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
        os.close(user.open_directory())
        assert common.stat().st_mode & 0o777 == 0o700
        assert not list((tmp_path / "open").iterdir())
        common.rmdir()


@pytest.mark.parametrize("planted", ["symlink", "file", "open to others"])
def test_a_place_that_somebody_else_may_have_prepared_is_refused(
    common: Path, planted: str, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if planted == "symlink":
        common.symlink_to(elsewhere)
    elif planted == "file":
        common.write_text("")
    else:
        common.mkdir()
        common.chmod(0o770)
    with pytest.raises(ConfigError) as caught:
        user.open_directory()
    assert str(common) in vars(caught.value)["reason"]
    assert not list(elsewhere.iterdir())


def test_a_place_of_somebody_else_is_refused(common: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common.mkdir(mode=0o700)
    another = os.geteuid() + 1
    common.rename(common.with_name(f"agent-sandbox-{another}"))
    monkeypatch.setattr(os, "geteuid", lambda: another)
    with pytest.raises(ConfigError) as caught:
        user.open_directory()
    assert "XDG_RUNTIME_DIR" in vars(caught.value)["reason"]


def test_two_that_find_no_service_at_the_same_moment_start_one(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2, timeout=WAIT_S)
    never = threading.Barrier(2, timeout=0.5)  # one at a time looks again before it starts it
    looked = threading.local()
    ordinary, started = user._listens, list[int]()

    def listens(path: str) -> bool:
        found = ordinary(path)
        looked.times = getattr(looked, "times", 0) + 1
        if looked.times == 1:
            both.wait()
        else:
            with contextlib.suppress(threading.BrokenBarrierError):
                never.wait()
        return found

    def launch(listener: int, options: Options, **_: int) -> tuple[object, FileIO]:
        started.append(os.dup(listener))
        told, tell = os.pipe()
        os.write(tell, b"started")
        os.close(tell)
        return SimpleNamespace(), FileIO(told)

    monkeypatch.setattr(user, "_listens", listens)
    monkeypatch.setattr(user, "launch", launch)
    with (
        user.UserProvider(start=True) as one,
        user.UserProvider(start=True) as two,
        ThreadPoolExecutor(2) as threads,
    ):
        # Whoever is first goes on to use it: the other must not wait for the end of that.
        list(threads.map(lambda provider: provider.open(), [one, two]))
    assert len(started) == 1
    os.close(started[0])


def test_one_that_somebody_started_and_left_meanwhile_is_used_and_not_replaced(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its starter may be done with it between our look and our lock, and it runs on."""
    ordinary = user._takes
    with socket.socket(socket.AF_UNIX) as service:

        def takes(lock: int, how: int) -> bool:
            if how == fcntl.LOCK_EX and not (common / "s").exists():
                service.bind(str(common / "s"))
                service.listen()
            return ordinary(lock, how)

        monkeypatch.setattr(user, "_takes", takes)
        monkeypatch.setattr(user, "launch", lambda *_, **__: pytest.fail("a second one"))
        with user.UserProvider(start=True) as provider:
            assert provider.open().uds is not None


def test_a_service_that_accepts_nobody_now_is_there_and_not_waited_for(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert not user._listens(path)
    with socket.socket(socket.AF_UNIX) as service, contextlib.ExitStack() as callers:
        service.bind(path)
        service.listen(0)
        for _ in range(3):
            caller = callers.enter_context(socket.socket(socket.AF_UNIX))
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):  # the queue is full
                caller.connect(path)
        assert user._listens(path)
    assert not user._listens(path)


def test_who_waits_too_long_for_others_is_told(
    common: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user, "LOCK_S", 0.05)
    directory = user.open_directory()
    lock = user._open_lock(directory)
    assert user._takes(lock, fcntl.LOCK_EX)
    with user.UserProvider(Options(), start=True) as provider, pytest.raises(SandboxTimeoutError):
        provider.open()
    os.close(lock)
    with user.UserProvider(start=False) as provider, pytest.raises(SandboxNotFoundError):
        provider.open()
    os.close(directory)
