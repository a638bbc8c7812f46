"""Sandboxes from inside: what holds them, what is left of them, and who gets threads."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from agent_sandbox.errors import (
    ConfigError,
    FileOperationError,
    SandboxNotFoundError,
    SandboxUnavailableError,
    ServiceBusyError,
)
from agent_sandbox.express import disk as disk_module
from agent_sandbox.express import sandboxes as module
from agent_sandbox.express import state as state_module
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.sandbox import DISK_SLOTS, Sandbox
from agent_sandbox.express.sandboxes import Sandboxes
from agent_sandbox.express.spares import Spares
from agent_sandbox.express.state import Instance, open_state_dir


@pytest.fixture
async def disk() -> AsyncIterator[Disk]:
    disk = Disk()
    yield disk
    disk.close()


@pytest.fixture
def instance(tmp_path: Path) -> Instance:
    return Instance(Descriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)))


@pytest.fixture
async def sandboxes(instance: Instance, disk: Disk) -> AsyncIterator[Sandboxes]:
    sandboxes = Sandboxes(instance, disk, Spares(instance, disk, Engine(None)))
    yield sandboxes
    async with asyncio.timeout(10):
        await sandboxes.close()
    instance.close()


async def made(sandboxes: Sandboxes) -> Sandbox:
    return await sandboxes.create(
        300, template="", metadata={}, variables={}, network=False, owner=b""
    )


async def hold(sandbox: Sandbox, begun: asyncio.Event, *, holds: bool = True) -> None:
    async with sandbox.use(holds=holds):
        begun.set()
        await asyncio.Event().wait()


async def test_a_renewal_counts_after_the_wall_clock_stepped_back(
    sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await made(sandboxes)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 7_200)
    sandboxes.set_ttl(sandbox, 600, shorten=False)
    assert sandbox.timer is not None
    left = sandbox.timer.when() - asyncio.get_running_loop().time()
    assert 590 < left <= 600
    sandboxes.set_ttl(sandbox, 10, shorten=False)
    assert sandbox.timer.when() - asyncio.get_running_loop().time() > 590


class TestHolding:
    async def held(self, sandboxes: Sandboxes) -> tuple[Sandbox, asyncio.Task[None]]:
        """Return a sandbox whose time is up, and the work that holds it."""
        sandbox = await made(sandboxes)
        begun = asyncio.Event()
        work = asyncio.get_running_loop().create_task(hold(sandbox, begun))
        await begun.wait()
        sandboxes._expire(sandbox)
        assert sandboxes.get(sandbox.sandbox_id) is sandbox
        return sandbox, work

    async def test_work_holds_a_sandbox_for_as_long_as_it_lasts(
        self, sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "LEASE_S", 0.01)
        sandbox, work = await self.held(sandboxes)
        for _ in range(20):
            timer = sandbox.timer
            await until(lambda: sandbox.timer is not timer)  # noqa: B023 - awaited at once
            assert sandboxes.get(sandbox.sandbox_id) is sandbox
            assert sandbox.end_at > time.time() - 0.5, "what is shown is not long ago"
        work.cancel()
        await until(lambda: sandbox.ended)
        with pytest.raises(SandboxNotFoundError):
            sandboxes.get(sandbox.sandbox_id)

    async def test_its_caller_has_the_time_to_renew_it_after_the_work(
        self, sandboxes: Sandboxes
    ) -> None:
        sandbox, work = await self.held(sandboxes)
        work.cancel()
        await asyncio.wait([work])
        sandboxes._expire(sandbox)
        assert sandboxes.get(sandbox.sandbox_id) is sandbox
        sandboxes.set_ttl(sandbox, 600, shorten=False)
        assert sandbox.timer is not None
        assert sandbox.timer.when() - asyncio.get_running_loop().time() > 590
        sandboxes._expire(sandbox)
        assert sandbox.ended, "a later end is one at once again"

    async def test_a_hold_has_an_end(
        self, sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "MAX_OVERTIME_S", 0.05)
        sandbox, work = await self.held(sandboxes)
        async with asyncio.timeout(10):
            with pytest.raises(SandboxNotFoundError):
                await work
        assert sandbox.ended

    async def test_a_watch_holds_nothing(self, sandboxes: Sandboxes) -> None:
        sandbox = await made(sandboxes)
        begun = asyncio.Event()
        work = asyncio.get_running_loop().create_task(hold(sandbox, begun, holds=False))
        await begun.wait()
        sandboxes._expire(sandbox)
        assert sandbox.ended
        with pytest.raises(SandboxNotFoundError):
            await work

    async def test_work_that_comes_after_the_end_finds_no_sandbox(
        self, sandboxes: Sandboxes
    ) -> None:
        sandbox = await made(sandboxes)  # found by a request, whose body then took its time
        sandboxes._expire(sandbox)
        with pytest.raises(SandboxNotFoundError):
            async with sandbox.use():
                pytest.fail("its files are gone")

    async def test_a_watch_that_ends_does_not_prolong_what_work_held(
        self, sandboxes: Sandboxes
    ) -> None:
        sandbox, work = await self.held(sandboxes)
        work.cancel()
        await asyncio.wait([work])
        since = sandbox.idle_since
        async with sandbox.use(holds=False):
            pass
        assert sandbox.idle_since == since

    async def test_a_kill_in_the_moment_in_which_work_ends_hits_nothing_after_it(
        self, sandboxes: Sandboxes
    ) -> None:
        sandbox = await made(sandboxes)

        async def work() -> str:
            async with sandbox.use():
                sandboxes._begin_end(sandbox, "killed")
            await asyncio.sleep(0)
            return "went on"

        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().create_task(work()) == "went on"

    async def test_a_kill_does_not_wait_for_work(self, sandboxes: Sandboxes) -> None:
        sandbox, work = await self.held(sandboxes)
        async with asyncio.timeout(4):
            await sandboxes.kill(sandbox)
            with pytest.raises(SandboxNotFoundError):
                await work
        assert sandbox.ending is not None
        assert sandbox.ending.done()

    async def test_a_sandbox_that_is_ending_can_be_killed_and_no_more(
        self, sandboxes: Sandboxes
    ) -> None:
        sandbox = await made(sandboxes)
        sandboxes._expire(sandbox)
        with pytest.raises(SandboxNotFoundError):
            sandboxes.get(sandbox.sandbox_id)
        assert sandboxes.get(sandbox.sandbox_id, ending=True) is sandbox
        await sandboxes.kill(sandbox)
        with pytest.raises(SandboxNotFoundError):
            sandboxes.get(sandbox.sandbox_id, ending=True)

    async def test_the_end_of_the_service_does_not_wait_for_work(
        self, sandboxes: Sandboxes
    ) -> None:
        _, work = await self.held(sandboxes)
        async with asyncio.timeout(4):
            await sandboxes.close()
            with pytest.raises(SandboxNotFoundError):
                await work
            with pytest.raises(SandboxUnavailableError):
                await made(sandboxes)


async def until(condition: Callable[[], object]) -> None:
    """Look again until a timer has done its work."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - timers tell nobody
            await asyncio.sleep(0.001)


def directories(tmp_path: Path) -> list[Path]:
    return [one for one in tmp_path.glob("instances/*/*") if one.is_dir()]


def dead(tmp_path: Path) -> list[str]:
    return [one.name for one in tmp_path.glob("dead/*")]


class TestLeftovers:
    async def test_a_sandbox_that_cannot_be_made_leaves_nothing(
        self, sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        real = os.mkdir

        def full(name: str, mode: int = 0o777, *, dir_fd: int) -> None:
            if name == "var":
                raise OSError(errno.EMFILE, "")
            real(name, mode, dir_fd=dir_fd)

        with monkeypatch.context() as patched:
            patched.setattr(os, "mkdir", full)
            with pytest.raises(SandboxUnavailableError):
                await made(sandboxes)
        assert directories(tmp_path) == []

    async def test_a_caller_that_leaves_while_it_is_made_leaves_nothing(
        self, sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        making, go_on = threading.Event(), threading.Event()
        real = Instance.make_root

        def slow(self: Instance, sandbox_id: str) -> int:
            making.set()
            assert go_on.wait(10)
            return real(self, sandbox_id)

        monkeypatch.setattr(Instance, "make_root", slow)
        before = len(os.listdir("/proc/self/fd"))
        task = asyncio.get_running_loop().create_task(made(sandboxes))
        await asyncio.to_thread(making.wait, 10)
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert directories(tmp_path) == []
        assert len(os.listdir("/proc/self/fd")) == before

    async def test_what_resists_its_removal_is_swept_later(
        self,
        sandboxes: Sandboxes,
        instance: Instance,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        sandbox = await made(sandboxes)

        def busy(*_: object) -> None:
            raise OSError(errno.EMFILE, "")

        with monkeypatch.context() as patched:
            patched.setattr(state_module, "remove_tree", busy)
            await sandboxes.kill(sandbox)
            instance.sweep()
        left = [directory.name for directory in directories(tmp_path)]  # the spares
        assert sandbox.sandbox_id not in left
        assert dead(tmp_path) == [sandbox.sandbox_id]
        instance.sweep()
        assert dead(tmp_path) == []


class TestDisk:
    async def test_one_sandbox_has_only_its_share_of_the_threads(self, disk: Disk) -> None:
        slots = asyncio.Semaphore(2)
        go_on = threading.Event()
        begun: list[int] = []

        def work() -> None:
            begun.append(1)
            assert go_on.wait(10)

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(disk.run(work, slots=slots)) for _ in range(40)]
        async with asyncio.timeout(10):
            assert await disk.run(lambda: "another's") == "another's"
        assert len(begun) <= 2
        go_on.set()
        await asyncio.gather(*tasks)
        assert len(begun) == 40

    async def test_sandboxes_that_take_every_thread_keep_none_from_being_made_or_for_ever(
        self, disk: Disk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disk_module, "BUSY_S", 0.05)
        go_on = threading.Event()
        begun = threading.Semaphore(0)

        def work() -> None:
            begun.release()
            assert go_on.wait(10)

        loop = asyncio.get_running_loop()
        shares = [asyncio.Semaphore(DISK_SLOTS) for _ in range(8)]
        tasks = [
            loop.create_task(disk.run(work, slots=slots))
            for slots in shares
            for _ in range(DISK_SLOTS)
        ]
        for _ in range(disk_module.SHARED_THREADS):
            assert await asyncio.to_thread(begun.acquire, timeout=10)
        async with asyncio.timeout(10):
            with pytest.raises(ServiceBusyError):
                await disk.run(lambda: "another's", slots=asyncio.Semaphore(1))
            assert await disk.run(lambda: "the service's own") == "the service's own"
        go_on.set()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert ended.count(None) >= disk_module.SHARED_THREADS
        assert await disk.run(lambda: "again", slots=asyncio.Semaphore(1)) == "again"

    async def test_what_fails_is_not_undone(self, disk: Disk) -> None:
        undone: list[object] = []

        def fail() -> None:
            raise FileOperationError

        with pytest.raises(FileOperationError):
            await disk.run(fail, undo=undone.append)
        assert await disk.run(lambda: 1, undo=undone.append) == 1
        assert undone == []


class TestStateDirectory:
    def test_a_link_is_no_state_directory(self, tmp_path: Path) -> None:
        real = tmp_path / "real"
        real.mkdir(mode=0o700)
        (tmp_path / "link").symlink_to(real)
        with pytest.raises(ConfigError) as raised:
            open_state_dir(tmp_path / "link", uid=os.geteuid(), gid=os.getegid())
        assert "symbolic link" in raised.value.__dict__["reason"]

    @pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
    def test_one_that_others_may_write_in_is_refused(self, tmp_path: Path, mode: int) -> None:
        directory = tmp_path / "state"
        directory.mkdir()
        directory.chmod(mode)
        with pytest.raises(ConfigError) as raised:
            open_state_dir(directory, uid=os.geteuid(), gid=os.getegid())
        assert "Others may write" in raised.value.__dict__["reason"]

    @pytest.mark.parametrize("mode", [0o700, 0o755])
    def test_one_of_our_own_is_taken(self, tmp_path: Path, mode: int) -> None:
        directory = tmp_path / "state"
        directory.mkdir()
        directory.chmod(mode)
        open_state_dir(directory, uid=os.geteuid(), gid=os.getegid()).close()
