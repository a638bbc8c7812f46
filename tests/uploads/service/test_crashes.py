"""A process that is killed, or whose disk fails, at each system call of the path.

`strace -e inject` makes the fault where the kernel would; nothing of ours is patched.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.support.upload_parts import ME, Sink, chunked, config, sha256

from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.states import State
from agent_sandbox.uploads.store.sqlite import SqliteStore

ROOT = Path(__file__).parents[3]
SEED = bytes(range(256))
BODY = SEED * 1_200  # more than one batch


class Disk:
    """A service on a directory, and a PUT under strace in another process."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = SqliteStore(root / "db")
        self.blobs = LocalBlobs(root / "blobs")
        self.service = UploadService(
            config(pending_per_workspace=999, hourly_per_workspace=999), self.store, self.blobs
        )

    async def run(self, job: dict[str, Any], inject: str | None) -> list[dict[str, Any]]:
        """Do a job in another process, maybe with a fault; return what it said."""
        told = {"store": str(self.root / "db"), "blobs": str(self.root / "blobs"), **job}
        command = [sys.executable, "-m", "tests.support.upload_worker"]
        if inject is not None:
            strace = shutil.which("strace")
            assert strace, "strace is needed for these tests"
            command = [strace, "-f", "-qq", "-o", "/dev/null", "-e", f"inject={inject}", *command]
        done = await anyio.run_process(
            command,
            input=(json.dumps(told) + "\n").encode(), check=False, cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        return [line for line in lines if "ready" not in line]

    async def sweep(self, inject: str | None = None) -> list[dict[str, Any]]:
        """Sweep all that has expired, however young, in another process."""
        return await self.run({"do": "sweep", "settings": {"keep_s": 0}}, inject)

    async def must_sweep(self) -> None:
        """Sweep without a fault."""
        assert await self.sweep()

    async def put(self, inject: str) -> tuple[str, dict[str, Any]]:
        """PUT one file while `inject` is in force; return its id and what was answered."""
        session, secret = await self.service.create(ME, "a", len(BODY))
        sessions = [[session.upload_id, secret]]
        job = {"do": "put", "sessions": sessions, "body": SEED.hex(), "times": 1_200}
        answers = await self.run(job, inject)
        return session.upload_id, answers[0] if answers else {}

    def files(self) -> list[Path]:
        return [path for path in (self.root / "blobs").rglob("*") if path.is_file()]


@pytest.fixture
async def disk(tmp_path: Path) -> Any:
    disk = Disk(tmp_path)
    await disk.store.migrate()
    yield disk
    await disk.store.close()


async def recovered(disk: Disk, name: str, answer: dict[str, Any]) -> State:
    """Restart, and check what must hold after any crash; return the state found."""
    await disk.service.recover(abandon_all=True)
    found = await disk.service.get(ME, name)
    if answer.get("status") == 200:
        assert found.state is State.STORED  # no byte is lost that was acknowledged
    if found.state is State.STORED:
        assert found.received_sha256 == sha256(BODY)
        sink = Sink()
        await disk.service.place(ME, name, sink, "/a")
        assert sink.written == {"/a": BODY}
    return found.state


# Of each call, how many times the path makes it, and some more: the last runs come through.
KILLS = [("fsync", 14), ("fdatasync", 30), ("link", 3), ("unlink", 9), ("pwrite64", 60)]


@pytest.mark.parametrize(("call", "times"), KILLS)
async def test_a_kill_at_any_call_leaves_it_pending_failed_or_stored_and_right(
    disk: Disk, call: str, times: int
) -> None:
    killed = 0
    for turn in range(1, times + 1):
        name, answer = await disk.put(f"{call}:signal=KILL:when={turn}")
        killed += not answer
        state = await recovered(disk, name, answer)
        assert state in (State.PENDING, State.FAILED, State.STORED)
        if answer:
            assert answer["status"] == 200
            break
    else:
        pytest.fail("the path makes this call more often than it is killed at")
    # What is left is at most one torn temporary file for each kill, for the sweep to find.
    left = disk.files()
    assert {path.parent.name for path in left} <= {"incoming"}
    assert len(left) <= killed


async def test_a_kill_in_the_middle_of_the_bytes_fails_after_a_restart(disk: Disk) -> None:
    killed = 0
    for turn in range(1, 40):
        name, answer = await disk.put(f"write,writev:signal=KILL:when={turn}")
        killed += not answer
        await recovered(disk, name, answer)
        if answer:
            break
    else:
        pytest.fail("the path writes more often than it is killed at")
    assert killed >= 2


BLOB_FAULTS = [
    ("writev:error=ENOSPC", 507, "E7017"),
    ("writev:error=EDQUOT", 507, "E7017"),
    ("writev:error=EFBIG", 507, "E7017"),
    ("writev:error=EIO", 500, "E7018"),
    ("link:error=ENOSPC", 507, "E7017"),
    ("link:error=EIO", 500, "E7018"),
    ("link:error=EEXIST", 500, "E7018"),
]


@pytest.mark.parametrize(("inject", "status", "code"), BLOB_FAULTS)
async def test_a_fault_of_writing_or_publishing_is_told_and_leaves_nothing(
    disk: Disk, inject: str, status: int, code: str
) -> None:
    name, answer = await disk.put(inject)
    assert (answer["status"], answer["code"]) == (status, code)
    assert await recovered(disk, name, answer) is State.FAILED
    assert disk.files() == []


@pytest.mark.parametrize("calls", ["writev", "fsync", "writev,fsync", "pwrite64"])
async def test_an_interrupted_call_is_invisible(disk: Disk, calls: str) -> None:
    name, answer = await disk.put(f"{calls}:error=EINTR:when=1")
    assert answer["status"] == 200
    assert await recovered(disk, name, answer) is State.STORED


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
async def test_a_failing_sync_at_any_turn_is_never_taken_for_success(
    disk: Disk, error: str
) -> None:
    seen: set[int] = set()
    for turn in range(1, 20):
        name, answer = await disk.put(f"fsync,fdatasync:error={error}:when={turn}")
        state = await recovered(disk, name, answer)
        seen.add(answer.get("status", 0))
        if answer.get("status") == 200 and state is State.STORED and turn > 10:
            break
    assert seen & {500, 503, 507}
    assert 200 in seen


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
async def test_a_database_that_cannot_be_written_loses_nothing_that_was_acknowledged(
    disk: Disk, error: str
) -> None:
    seen: set[int] = set()
    for turn in range(1, 80, 3):
        name, answer = await disk.put(f"pwrite64:error={error}:when={turn}+4")
        state = await recovered(disk, name, answer)
        assert state in (State.PENDING, State.FAILED, State.STORED)
        seen.add(answer.get("status", 0))
        if answer.get("status") == 200:
            break
    assert seen <= {200, 500, 503, 507}
    assert len(seen) > 1


SWEEPS = [
    ("unlink", range(1, 40, 3)),
    ("fdatasync", range(1, 99, 7)),
    ("pwrite64", range(1, 99, 9)),
]
"""Of each call, at which ones it is killed; once it comes through, the rest are left out."""


@pytest.mark.parametrize(("call", "turns"), SWEEPS, ids=[call for call, _ in SWEEPS])
async def test_a_sweep_killed_at_any_call_is_finished_by_the_next_two_at_once(
    disk: Disk, call: str, turns: range
) -> None:
    earlier = SqliteStore(disk.root / "db", clock=lambda: time.time_ns() // 10**6 - 7_200_000)
    expiring = UploadService(config(), earlier, disk.blobs)
    killed = 0
    for turn in turns:
        for _ in range(3):
            session, secret = await expiring.create(ME, "a", 5)
            admitted = await expiring.authorise(session.upload_id, session.endpoint, secret)
            await expiring.receive(await expiring.claim(admitted), chunked(b"bytes"))
        through = await disk.sweep(f"{call}:signal=KILL:when={turn}")
        killed += not through
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(disk.must_sweep)
        assert disk.files() == []
        assert await disk.service.states() == {}
        if through:
            break
    else:
        pytest.fail("the sweep makes this call more often than it is killed at")
    await earlier.close()
    assert killed >= 2
