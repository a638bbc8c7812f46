"""The embedded service: its socket, its child, its life and its end."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.support.environment import SETTINGS
from tests.support.express import wait_until

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.client.providers import child, local
from agent_sandbox.express import privileges
from agent_sandbox.models import SandboxTimeoutError, SandboxUnavailableError

# --- The embedded service ---------------------------------------------------------------------


@pytest.fixture
def service() -> Iterator[Any]:
    """The process-wide service, stopped before and after."""
    local.stop()
    yield local._service
    local.stop()


def test_the_socket_is_private_and_goes_with_the_service(service: Any) -> None:
    with agent_sandbox.sync.Sandbox.create() as sandbox:
        sandbox.files.write("/tmp/a", b"x")
        path = Path(service.ready())
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
        child = service._child.pid
    local.stop()
    assert not path.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_new_service_is_started_when_the_old_one_was_stopped(service: Any) -> None:
    with agent_sandbox.sync.SandboxClient() as client:
        first = client.create()
        pid = service._child.pid
        local.stop()
        second = client.create()
        assert service._child.pid != pid
        second.files.write("/tmp/a", b"x")
        with pytest.raises(agent_sandbox.AgentSandboxError):
            first.files.read_bytes("/tmp/a")


async def test_a_dead_child_is_an_unavailable_sandbox_and_the_next_create_works(
    surface: str, service: Any
) -> None:
    if surface == "async":
        async with agent_sandbox.SandboxClient() as client:
            sandbox = await client.create()
            await sandbox.files.write("/tmp/a", b"x")
            _kill(service)
            for _ in range(3):
                with pytest.raises(SandboxUnavailableError):
                    await sandbox.files.read_bytes("/tmp/a", max_bytes=1)
            other = await client.create()
            await other.files.write("/tmp/a", b"y")
            assert await other.files.read_bytes("/tmp/a", max_bytes=1) == b"y"
    else:
        with agent_sandbox.sync.SandboxClient() as blocking:
            box = blocking.create()
            box.files.write("/tmp/a", b"x")
            _kill(service)
            for _ in range(3):
                with pytest.raises(SandboxUnavailableError):
                    box.files.read_bytes("/tmp/a", max_bytes=1)
            blocking.create().files.write("/tmp/a", b"y")


@pytest.mark.parametrize("lost", ["s", ""])
def test_a_service_whose_socket_was_cleaned_away_is_replaced(service: Any, lost: str) -> None:
    with agent_sandbox.sync.SandboxClient() as client:
        client.create()
        path = Path(service.ready())
        first = service._child
        path.unlink()
        if not lost:
            path.parent.rmdir()
        client.create().files.write("/tmp/a", b"x")
        assert first.poll() is not None


def _kill(service: Any) -> None:
    child = service._child
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)


def test_a_child_that_cannot_start_is_an_unavailable_service(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "command", lambda *_: [sys.executable, "-c", "raise SystemExit(1)"])
    with agent_sandbox.sync.SandboxClient() as client, pytest.raises(SandboxUnavailableError):
        client.create(deadline_s=10)
    monkeypatch.setattr(child, "command", lambda *_: ["/nonexistent"])
    with agent_sandbox.sync.SandboxClient() as client, pytest.raises(SandboxUnavailableError):
        client.create(deadline_s=10)


def test_a_child_that_cannot_start_says_why_in_its_own_words(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_SANDBOX_LOG_LEVEL", "canary")
    with agent_sandbox.sync.SandboxClient() as client:
        with pytest.raises(SandboxUnavailableError) as caught:
            client.create()
        assert vars(caught.value) == {
            "reason": "The sandbox service: AGENT_SANDBOX_LOG_LEVEL is one of: DEBUG, INFO,"
            " WARNING, ERROR."
        }
        monkeypatch.delenv("AGENT_SANDBOX_LOG_LEVEL")
        assert client.create().files.write("/tmp/a", b"x").bytes_written == 1


def test_a_child_that_says_nothing_is_not_waited_for_for_ever(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "START_S", 0.1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(child, "command", lambda *_: command)
    monkeypatch.setattr(local, "CLOSE_TIMEOUT_S", 0.1)
    with agent_sandbox.sync.SandboxClient() as client, pytest.raises(SandboxTimeoutError):
        client.create(deadline_s=0.5)


def test_a_child_that_failed_and_has_not_ended_is_not_taken_for_one_that_runs(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = child.command

    def fails(options: child.Options, descriptors: Mapping[str, int]) -> list[str]:
        code = f"import os, time; os.close({descriptors['report_fd']}); time.sleep(60)"
        return [sys.executable, "-c", code]

    monkeypatch.setattr(child, "command", fails)
    monkeypatch.setattr(local, "CLOSE_TIMEOUT_S", 0.1)
    with agent_sandbox.sync.SandboxClient() as client:
        with pytest.raises(SandboxUnavailableError):
            client.create()
        monkeypatch.setattr(child, "command", ordinary)
        assert client.create(deadline_s=20).files.write("/tmp/a", b"x").bytes_written == 1


def test_each_set_of_options_has_a_child_of_its_own(service: Any) -> None:
    bare = local.LocalProvider(isolation="none")
    with (
        agent_sandbox.sync.SandboxClient() as one,
        agent_sandbox.sync.SandboxClient(provider=bare) as other,
    ):
        one.create()
        sandbox = other.create()
        assert bare._service is not service
        assert bare._service is local.LocalProvider(isolation="none")._service
        assert sandbox.commands.run(["true"]).exit_code == 0
        own, shared = (Path(p).stat().st_ino for p in ("/proc/self/ns/pid", "/proc/self/ns/net"))
        seen = sandbox.commands.run(["stat", "-Lc%i", "/proc/self/ns/pid", "/proc/self/ns/net"])
        assert seen.stdout.split() == [str(own), str(shared)]
    local.stop()
    assert bare.ready() is None


def test_the_child_sees_nothing_of_our_environment_that_it_does_not_need(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", "canary")
    monkeypatch.setenv("AGENT_SANDBOX_API_KEY", "canary")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    own = str(privileges.DEFAULT_ID)  # the state directory of this machine may belong to it
    settings = {"AGENT_SANDBOX_UID": own, "AGENT_SANDBOX_GID": own}
    settings["AGENT_SANDBOX_LOG_LEVEL"] = "DEBUG"
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with agent_sandbox.sync.Sandbox.create(provider="local"):
        raw = subprocess.run(
            ["cat", f"/proc/{service._child.pid}/environ"], capture_output=True, check=False
        ).stdout
        assert b"canary" not in raw
        names = {item.split(b"=")[0].decode() for item in raw.split(b"\0") if item}
        assert names <= child.PASSED_ON
        for name, value in settings.items():  # what docs/security.md promises
            assert f"{name}={value}".encode() in raw.split(b"\0")


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for temporary files whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="x", dir="/tmp") as name:
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


def _left_behind(directory: Path, *, mode: int = 0o700, old: bool = True) -> socket.socket:
    """Make a directory as a killed process leaves it, and return its socket."""
    directory.mkdir()
    directory.chmod(mode)
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(directory / "s"))
    if old:
        os.utime(directory / "s", (0, 0))
    return sock


def test_a_directory_that_a_killed_process_left_is_swept(service: Any, base: Path) -> None:
    with (
        _left_behind(base / "asb-stale"),
        _left_behind(base / "asb-live") as listener,
        _left_behind(base / "asb-young", old=False),
    ):
        listener.listen()
        with agent_sandbox.sync.Sandbox.create():
            assert not (base / "asb-stale").exists()
            assert (base / "asb-live" / "s").exists()
            assert (base / "asb-young" / "s").exists()
        local.stop()


def test_nothing_of_anybody_else_is_swept(base: Path) -> None:
    """Whatever is named as ours are, only what a socket of ours is alone in goes."""
    project = base / "asb-project"
    project.mkdir(mode=0o700)
    (project / "s").write_text("source")
    os.utime(project / "s", (0, 0))
    linked = base / "asb-linked"
    linked.symlink_to("elsewhere")
    with (
        _left_behind(base / "elsewhere"),
        _left_behind(base / "asb-shared", mode=0o755),
        _left_behind(base / "asb-full"),
    ):
        (base / "asb-full" / "thesis").write_text("years of work")
        local._sweep(base)
        assert (project / "s").read_text() == "source"
        assert linked.is_symlink()
        assert (base / "elsewhere" / "s").exists()
        assert (base / "asb-shared" / "s").exists()
        assert (base / "asb-full" / "thesis").read_text() == "years of work"


def test_what_somebody_put_beside_the_socket_stays(service: Any, base: Path) -> None:
    with agent_sandbox.sync.Sandbox.create():
        directory = Path(service.ready()).parent
        (directory / "notes").write_text("mine")
    local.stop()
    assert os.listdir(directory) == ["notes"]


# --- The process around it --------------------------------------------------------------------


def run(code: str, *, warnings: str = "error") -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    kept = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return subprocess.run(
        [sys.executable, "-W", warnings, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env=kept,
        check=False,
    )


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("ending", ["", "os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_the_service_ends_with_its_process_however_that_ends(ending: str) -> None:
    done = run(
        f"""
        import os
        from agent_sandbox.sync import Sandbox
        from agent_sandbox.client.providers import local
        sandbox = Sandbox.create()
        sandbox.files.write("/tmp/a", b"x")
        print(local._service._child.pid, local._service.ready(), flush=True)
        {ending}
    """,
        warnings="ignore",  # the program closes nothing: that is the case
    )
    assert done.stderr == ""
    pid, path = done.stdout.split()
    wait_until(lambda: _gone(int(pid)), 15)
    if not ending:
        assert not Path(path).parent.exists()


def test_a_forked_child_gets_a_service_of_its_own_and_never_the_parents() -> None:
    done = run("""
        import os, sys, warnings
        from agent_sandbox.sync import Sandbox, SandboxClient
        from agent_sandbox.client.providers import local
        from agent_sandbox.errors import SandboxUnavailableError
        client = SandboxClient()
        sandbox = client.create()
        sandbox.files.write("/tmp/a", b"parent")
        parent = local._service._child.pid
        pid = os.fork()
        if pid == 0:
            assert local._service.ready() is None
            try:
                sandbox.files.read_bytes("/tmp/a", max_bytes=10)
            except SandboxUnavailableError:
                pass
            else:
                os._exit(1)
            mine = client.create()
            mine.files.write("/tmp/a", b"child")
            ok = mine.files.read_bytes("/tmp/a", max_bytes=10) == b"child"
            ok = ok and local._service._child.pid != parent
            client.close()
            local.stop()
            os._exit(0 if ok else 2)
        _, status = os.waitpid(pid, 0)
        assert status == 0, status
        assert sandbox.files.read_bytes("/tmp/a", max_bytes=10) == b"parent"
        assert local._service._child.poll() is None
        client.close()
        print("done")
    """)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_a_module_in_the_working_directory_is_not_imported_by_the_child(tmp_path: Path) -> None:
    (tmp_path / "uvicorn.py").write_text("raise SystemExit('taken over')")
    done = run(f"""
        import os
        os.chdir({str(tmp_path)!r})
        from agent_sandbox.sync import Sandbox
        with Sandbox.create():
            pass
    """)
    assert done.stderr == ""


async def test_nothing_is_left_open_after_the_last_client(service: Any) -> None:
    """ResourceWarnings are errors here: sockets, transports and processes are closed."""
    for _ in range(3):
        async with await agent_sandbox.Sandbox.create() as sandbox:
            await sandbox.files.write("/tmp/a", b"x")
        with agent_sandbox.sync.Sandbox.create() as twin:
            twin.files.write("/tmp/a", b"x")
    gc.collect()
