"""Sandboxes of real bubblewrap, under both ways in which a service runs."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agent_sandbox
from agent_sandbox.express.isolation import RunningSandbox, SandboxConfig, Spawner, cgroups
from agent_sandbox.express.isolation.rootfs import prepare_directory

ROOT = os.geteuid() == 0
SERVICE_USER = 61_234
"""A numeric user without a name, as the one that a root service drops to."""

MODES = ["dropped", "plain"] if ROOT else ["plain"]
PACKAGE = Path(agent_sandbox.__path__[0])


def pick_interpreter(user: int) -> str:
    """Return an interpreter that `user` may execute: this one may lie in root's home."""
    for candidate in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            tried = subprocess.run(
                [candidate, "-I", "-S", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"],
                user=user,
                group=user,
                extra_groups=[],
                cwd="/",
                timeout=20,
                check=False,
                stderr=subprocess.DEVNULL,
            )
            if tried.returncode == 0:
                return candidate
    raise RuntimeError("no interpreter that another user may execute")


def give_to_service(path: str) -> None:
    """Give a prepared directory to the user that the zygote drops to."""
    if ROOT:
        for entry in [Path(path), *Path(path).rglob("*")]:
            os.chown(entry, SERVICE_USER, SERVICE_USER, follow_symlinks=False)


class Service:
    """A driver process, and the directories of its sandboxes."""

    def __init__(self, mode: str, base: Path, *, use_cgroups: bool) -> None:
        self.base = base
        self.mode = mode
        self.user = SERVICE_USER if ROOT else os.geteuid()
        code = base / "code"
        (code / "express").mkdir(parents=True)
        shutil.copytree(PACKAGE / "errors", code / "errors")
        shutil.copytree(PACKAGE / "express" / "isolation", code / "express" / "isolation")
        shutil.copy(Path(__file__).with_name("driver.py"), code)
        plain = mode == "plain"
        settings = {
            "stand_ins": [
                ["agent_sandbox", str(code)],
                ["agent_sandbox.express", str(code / "express")],
                ["agent_sandbox.express.isolation", str(code / "express" / "isolation")],
            ],
            "user": None if plain else self.user,
            "use_cgroups": use_cgroups,
        }
        change = plain and ROOT
        interpreter = pick_interpreter(self.user) if change else sys.executable
        identity: dict[str, Any] = (
            {"user": self.user, "group": self.user, "extra_groups": []} if change else {}
        )
        self.process = subprocess.Popen(
            [interpreter, "-I", "-S", str(code / "driver.py"), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"SERVICE_SECRET": "canary-of-the-service"},
            cwd="/",
            **identity,
        )
        self._count = 0

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def start(self, **options: Any) -> Box:
        self._count += 1
        directory = self.base / f"s{self._count}"
        directory.mkdir()
        os.chown(directory, self.user, self.user)
        name = directory.name
        answer = self.ask("start", name=name, directory=str(directory), **options)
        assert answer == {}
        return Box(self, name, directory)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
        # This glob goes on where a group of others vanishes meanwhile, that of pathlib does not.
        for parent in glob.glob(
            f"/sys/fs/cgroup/*/**/agent-sandbox-{self.process.pid}", recursive=True
        ):
            cgroups.remove_tree(parent)


class Box:
    """One sandbox of a service."""

    def __init__(self, service: Service, name: str, directory: Path) -> None:
        self.service = service
        self.name = name
        self.directory = directory

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        return self.service.ask(op, name=self.name, **arguments)

    def run(self, *argv: str, **options: Any) -> dict[str, Any]:
        return self.ask("run", argv=list(argv), **options)

    def shell(self, script: str) -> dict[str, Any]:
        return self.run("/bin/sh", "-c", script)


@pytest.fixture(scope="session")
def public_base() -> Iterator[Path]:
    # Not tmp_path: its ancestors are closed to the user that the service drops to.
    base = Path(tempfile.mkdtemp(prefix="as-", dir="/var/tmp"))
    base.chmod(0o755)
    yield base
    shutil.rmtree(base)


StartService = Callable[..., Service]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def start_service(public_base: Path) -> Iterator[StartService]:
    services: list[Service] = []

    def start(mode: str, *, use_cgroups: bool = True) -> Service:
        base = Path(tempfile.mkdtemp(dir=public_base))
        base.chmod(0o755)
        services.append(Service(mode, base, use_cgroups=use_cgroups))
        return services[-1]

    yield start
    for service in services:
        service.close()


@pytest.fixture(scope="module", params=MODES)
def box(request: pytest.FixtureRequest, public_base: Path) -> Iterator[Box]:
    """Yield one sandbox that the tests of a module share, in each mode."""
    base = Path(tempfile.mkdtemp(dir=public_base))
    base.chmod(0o755)
    service = Service(request.param, base, use_cgroups=True)
    try:
        yield service.start()
    finally:
        service.close()


@pytest.fixture
async def spawner() -> AsyncIterator[Spawner]:
    made = Spawner.launch(user=SERVICE_USER if ROOT else None)
    yield made
    await made.close()


@pytest.fixture
def make_directory(public_base: Path) -> Callable[[], int]:
    def make() -> int:
        path = tempfile.mkdtemp(dir=public_base)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        prepare_directory(fd)
        give_to_service(path)
        return fd

    return make


@pytest.fixture
def directory(make_directory: Callable[[], int]) -> Iterator[int]:
    fd = make_directory()
    yield fd
    os.close(fd)


@pytest.fixture
async def sandbox(spawner: Spawner, directory: int) -> AsyncIterator[RunningSandbox]:
    made = await spawner.start(SandboxConfig(directory))
    yield made
    await made.stop()
