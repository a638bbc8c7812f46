"""Directories of uploads: who else is in there, what keeps one from being used."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import anyio
import pytest

from agent_sandbox.errors import ConfigError
from agent_sandbox.mcp_server.transfers import directories
from agent_sandbox.mcp_server.transfers.directories import (
    Locked,
    check_directory,
    process_directory,
    shared_directory,
)

WAIT_S = 30.0

Opening = Callable[[Path], AbstractAsyncContextManager[Locked]]


@contextmanager
def held(path: Path, kind: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold the lock of a directory, as another process would."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def found_below(path: Path) -> list[Path]:
    """Return everything below a directory."""
    return sorted(path.rglob("*"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "uploads"
    path.mkdir(mode=0o700)
    return path


@pytest.mark.parametrize("opening", [shared_directory, process_directory])
async def test_a_lock_that_another_process_keeps_is_an_error_that_says_what_to_do(
    folder: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "LOCK_TIMEOUT_S", 0.05)
    with anyio.fail_after(WAIT_S), held(folder), pytest.raises(ConfigError) as failed:
        async with opening(folder):
            pass
    assert "does not let go: end it" in failed.value.reason
    async with opening(folder):
        pass


@pytest.mark.parametrize("opening", [shared_directory, process_directory])
async def test_a_lock_that_is_let_go_is_taken_and_the_wait_can_be_cancelled(
    folder: Path, opening: Opening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "LOCK_TIMEOUT_S", WAIT_S)
    opened: list[bool] = []

    async def use() -> None:
        async with opening(folder) as locked:
            opened.append(locked.alone)

    with anyio.fail_after(WAIT_S):
        async with anyio.create_task_group() as tasks:
            with held(folder):
                tasks.start_soon(use)
                await anyio.wait_all_tasks_blocked()
                assert opened == []
        assert len(opened) == 1
        with held(folder):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(use)
                await anyio.wait_all_tasks_blocked()
                tasks.cancel_scope.cancel()
        assert len(opened) == 1
    with held(folder):
        pass  # nothing was left locked


async def test_the_first_is_alone_until_it_lets_others_in(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directories, "LOCK_TIMEOUT_S", 0.05)
    async with shared_directory(folder) as first:
        assert first.alone
        with pytest.raises(ConfigError):
            async with shared_directory(folder):
                pass
        await first.share()
        async with shared_directory(folder) as second:
            assert not second.alone


@pytest.mark.parametrize(
    ("kind", "works"),
    [
        ("missing", True),
        ("private", True),
        ("open", False),
        ("file", False),
        ("below a file", False),
        ("a loop", False),
    ],
)
async def test_an_early_look_says_what_opening_will_say_and_makes_nothing(
    tmp_path: Path, kind: str, works: bool
) -> None:
    path = tmp_path / "deep" / "down"
    if kind != "missing":
        path.parent.mkdir()
    if kind in ("private", "open"):
        path.mkdir(0o700)
        path.chmod(0o700 if kind == "private" else 0o777)
    elif kind in ("file", "below a file"):
        path.touch()
        path = path / "below" if kind == "below a file" else path
    elif kind == "a loop":
        path.symlink_to(path)
    before = found_below(tmp_path)
    reasons: list[str] = []
    try:
        check_directory(path)
    except ConfigError as error:
        reasons.append(error.reason)
    assert found_below(tmp_path) == before
    try:
        async with shared_directory(path):
            pass
    except ConfigError as error:
        reasons.append(error.reason)
    assert len(reasons) == (0 if works else 2)
    assert len(set(reasons)) <= 1
