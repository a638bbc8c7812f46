"""Express as a child: its lifeline, its privileges, its late imports, and what it sweeps."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from tests.support.express import (
    Child,
    child,
    environment,
    log_lines,
    served,
    wait_until,
)

import agent_sandbox
from agent_sandbox.express.privileges import DEFAULT_ID

IS_ROOT = os.geteuid() == 0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path


def test_it_answers_at_once_on_the_socket_it_was_given(directory: Path) -> None:
    with child(directory) as service:
        assert service.http.get("/health").status_code == 204
        assert service.create().put("/a", b"x").status_code == 200


def test_it_ends_with_its_lifeline_and_leaves_nothing(directory: Path) -> None:
    with child(directory) as service:
        service.create().put("/a", b"x")
        assert list(service.state_dir.glob("instances/*/*/root/a"))
        service.cut_lifeline()
        assert service.process.wait(10) == 0
        assert not list(service.state_dir.glob("instances/*"))
        assert service.log() == ""


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT])
def test_a_served_one_ends_by_signal_and_leaves_nothing(directory: Path, end: int) -> None:
    with served(directory) as service:
        box = service.create()
        with box.http.stream(
            "POST",
            "/filesystem.Filesystem/WatchDir",
            content=b"\0\0\0\0\x0c" + b'{"path":"~"}',
            headers=box.headers | {"content-type": "application/connect+json"},
        ) as stream:
            messages = stream.iter_raw()
            assert b"start" in next(messages)
            service.process.send_signal(end)
            assert b"unavailable" in b"".join(messages), "the stream is told why it ends"
        assert service.process.wait(10) == 0
        assert not list(service.state_dir.glob("instances/*"))


def test_ctrl_c_is_for_the_parent_to_decide(directory: Path) -> None:
    with child(directory) as service:
        assert service.http.get("/health").status_code == 204
        service.process.send_signal(signal.SIGINT)
        assert service.http.get("/health").status_code == 204


def test_what_a_crashed_instance_left_is_swept_and_a_living_one_is_not(directory: Path) -> None:
    (directory / "other").mkdir()
    with child(directory) as crashed:
        crashed.create().put("/a/b/c", b"x")
        crashed.process.kill()
        crashed.process.wait(10)
    state = crashed.state_dir
    assert len(list(state.glob("instances/*"))) == 1
    with child(directory) as living:
        box = living.create()
        wait_until(lambda: not list(state.glob("dead/*")))
        assert len(list(state.glob("instances/*"))) == 1
        os.rename(directory / "s", directory / "first")
        with child(directory) as second:
            assert second.http.get("/health").status_code == 204
            assert len(list(state.glob("instances/*"))) == 2
            assert box.put("/a", b"still here").status_code == 200


STUCK = textwrap.dedent("""
    import sys, threading
    from agent_sandbox.express import __main__, state
    state.remove_tree = lambda *_: threading.Event().wait()
    sys.exit(__main__.main())
""")


def test_a_destroy_that_was_begun_is_finished_by_the_next_start(directory: Path) -> None:
    with child(directory, command=(sys.executable, "-c", STUCK)) as crashed:
        box = crashed.create()
        box.put("/tmp/a", b"x")
        state = crashed.state_dir

        def kill() -> None:
            with contextlib.suppress(httpx2.TransportError):
                box.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        wait_until(lambda: (state / "dead" / box.sandbox_id / "root/tmp/a").exists())
        crashed.process.kill()
        crashed.process.wait(10)
        killing.join(10)
    with child(directory):
        wait_until(lambda: not list(state.glob("dead/*")))
        assert len(list(state.glob("instances/*"))) == 1


def test_it_runs_as_its_own_user_and_cannot_be_traced(directory: Path) -> None:
    with child(directory) as service:
        assert service.http.get("/health").status_code == 204
        process = psutil.Process(service.process.pid)
        uid = DEFAULT_ID if IS_ROOT else os.geteuid()
        assert set(process.uids()) == {uid}
        status = Path(f"/proc/{service.process.pid}/status").read_text()
        lines = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if IS_ROOT:
            assert lines["Groups"].strip() == ""
            for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
                assert int(lines[kind], 16) == 0
        assert lines["NoNewPrivs"].strip() == "1"
        # The owner of /proc/PID/* is root while a process is not dumpable.
        assert Path(f"/proc/{service.process.pid}/environ").stat().st_uid == 0
        box = service.create()
        box.put("/a", b"x")
        assert (service.root_of(box) / "a").stat().st_uid == uid


def test_another_user_can_be_chosen(directory: Path) -> None:
    with child(directory, env={"AGENT_SANDBOX_UID": "54321"}) as service:
        assert service.http.get("/health").status_code == 204
        expected = 54321 if IS_ROOT else os.geteuid()
        assert psutil.Process(service.process.pid).uids().real == expected


@pytest.mark.parametrize("uid", ["0", "-1", "root", "99999999999"])
def test_root_is_no_choice(directory: Path, uid: str) -> None:
    if not IS_ROOT:
        return  # nothing is dropped, so nothing is chosen
    with child(directory, env={"AGENT_SANDBOX_UID": uid}) as service:
        assert service.process.wait(10) == 2
        assert "AGENT_SANDBOX_UID" in service.log()
        assert "Traceback" not in service.log()


def exercise(service: Child) -> None:
    """Use every route, with success and with failure."""
    box = service.create(metadata={"ü": "x"})
    assert box.put("/tmp/ü", os.urandom(3_000_000)).status_code == 200
    assert len(box.get("/tmp/ü").content) == 3_000_000
    assert box.get("/tmp/none").status_code == 404
    assert box.get("/tmp/..").status_code == 400
    box.put("/tmp/text", b"text " * 100_000)
    assert box.get("/tmp/text", headers={"accept-encoding": "gzip"}).status_code == 200
    form = box.http.post("/files", files={"file": ("/a", b"x")}, headers=box.headers)
    assert form.status_code == 200
    broken = box.headers | {"content-type": "multipart/form-data; boundary=x"}
    assert box.http.post("/files", content=b"y", headers=broken).status_code == 400
    calls: list[tuple[str, dict[str, Any]]] = [
        ("Stat", {"path": "/a"}), ("ListDir", {"path": "/", "depth": 5}),
        ("MakeDir", {"path": "/d"}),
        ("Move", {"source": "/a", "destination": "/d/a"}), ("Remove", {"path": "/d"}),
    ]  # fmt: skip
    for name, message in calls:
        assert box.rpc(name, **message).status_code == 200
    assert box.rpc("Stat", path=1).status_code == 400
    assert box.rpc("Unknown").status_code == 404
    watcher = box.rpc("CreateWatcher", path="/", recursive=True, includeEntry=True).json()
    box.put("/w/x", b"x")
    wait_until(lambda: box.rpc("GetWatcherEvents", **watcher).json().get("events"))
    assert box.rpc("RemoveWatcher", **watcher).status_code == 200
    for method, url in [
        ("GET", "/v2/sandboxes?metadata=a%3Db&startedAfter=2020-01-01T00:00:00Z&state=running"),
        ("GET", f"/sandboxes/{box.sandbox_id}"), ("GET", f"/sandboxes/{box.sandbox_id}/metrics"),
        ("GET", "/none"), ("PUT", "/files"), ("POST", "/v2/sandboxes"),
    ]:  # fmt: skip
        assert service.http.request(method, url).status_code < 500
    connect = f"/v2/sandboxes/{box.sandbox_id}/connect"
    assert service.http.post(connect, json={"timeout": 500}).status_code == 200
    short = f"/sandboxes/{box.sandbox_id}/timeout"
    assert service.http.post(short, json={"timeout": 1}).status_code == 204
    wait_until(lambda: service.http.get(f"/sandboxes/{box.sandbox_id}").status_code == 404)


def test_nothing_is_imported_after_the_drop(directory: Path) -> None:
    with child(directory, env={"AGENT_SANDBOX_LOG_LEVEL": "DEBUG"}) as service:
        exercise(service)
        service.cut_lifeline()
        assert service.process.wait(10) == 0
        late = [line for line in log_lines(service.log()) if "late import" in line["message"]]
        assert late == []


def test_it_serves_where_its_user_cannot_read_the_packages(directory: Path) -> None:
    closed = directory / "closed"
    closed.mkdir()
    source = Path(agent_sandbox.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, closed / "agent_sandbox", ignore=ignored)
    for name in (
        "annotated_types", "anyio", "click", "h11", "idna", "pydantic", "pydantic_core",
        "python_multipart", "starlette", "typing_extensions", "typing_inspection", "uvicorn",
    ):  # fmt: skip
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        if spec.submodule_search_locations:
            shutil.copytree(Path(spec.origin).parent, closed / name, ignore=ignored)
        else:
            shutil.copy(spec.origin, closed)
    closed.chmod(0o700)
    command = (sys.executable, "-S", "-m", "agent_sandbox.express")
    with child(directory, env={"PYTHONPATH": str(closed)}, command=command) as service:
        exercise(service)
        if IS_ROOT:
            probe = subprocess.run(
                [
                    sys.executable,
                    "-c",
                    f"import os; os.setuid({DEFAULT_ID}); os.listdir({str(closed)!r})",
                ],
                capture_output=True,
                check=False,
            )
            assert b"PermissionError" in probe.stderr, "the copy is really closed to that user"


def test_a_state_directory_of_somebody_else_is_refused(directory: Path) -> None:
    state = directory / "child-state"
    state.mkdir()
    (state / "precious").write_text("data")
    if not IS_ROOT:
        state.chmod(0o555)
    with child(directory) as service:
        assert service.process.wait(10) == 2
        assert "state directory" in service.log()
        assert (state / "precious").read_text() == "data"
    state.chmod(0o755)


def test_a_kernel_without_openat2_is_a_clear_error(tmp_path: Path) -> None:
    code = (
        "from agent_sandbox.express import openat2;"
        "openat2._SYS_OPENAT2 = 9999;"  # no such system call: ENOSYS
        "from agent_sandbox.errors import ConfigError\n"
        "try: openat2.require_openat2()\n"
        "except ConfigError as error: print(error.reason)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment(), timeout=30, check=True
    )
    assert b"openat2 (Linux 5.6)" in run.stdout


def test_importing_configures_no_logging() -> None:
    code = (
        "import logging, agent_sandbox.express.server;"
        "assert not logging.getLogger().handlers and logging.getLogger().level == logging.WARNING"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30, env=environment())


def test_a_full_disk_is_507_and_changes_nothing(directory: Path) -> None:
    limited = ("prlimit", "--fsize=1500000", sys.executable, "-m", "agent_sandbox.express")
    with child(directory, command=limited) as service:
        box = service.create()
        assert box.put("/a", b"old").status_code == 200
        for data in (bytes(1_400_000) * 2, bytes(1_048_576 * 3)):
            answer = box.put("/a", data)
            assert answer.status_code == 507
            assert answer.headers["agent-sandbox-error"] == "E4006"
        assert box.get("/a").content == b"old"
        assert not list(service.root_of(box).rglob(".~agent-sandbox.*"))
