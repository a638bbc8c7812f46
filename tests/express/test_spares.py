"""Sandboxes that stand ready: none is lost, handed out dead, or left behind half made."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest

from agent_sandbox.errors import SandboxUnavailableError
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.disk import Disk
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.isolation import RunningSandbox
from agent_sandbox.express.spares import SPARES, Spares
from agent_sandbox.express.state import Instance


class Running:
    """A sandbox that came up."""

    def __init__(self, root_fd: int) -> None:
        self.root_fd = os.dup(root_fd)
        self.ended = asyncio.Event()

    async def stop(self) -> None:
        os.close(self.root_fd)


class Slow(Engine):
    """An engine whose sandboxes come up when they may.

    Attributes:
        fails: Whether they do not.
    """

    def __init__(self) -> None:
        super().__init__(None)
        self.go_on = asyncio.Event()
        self.fails = False
        self.made: list[Running] = []

    async def start(self, directory_fd: int, *, network: bool) -> RunningSandbox:
        await self.go_on.wait()
        if self.fails:
            raise SandboxUnavailableError
        self.made.append(Running(directory_fd))
        return cast(RunningSandbox, self.made[-1])


@pytest.fixture
async def engine() -> Slow:
    return Slow()


@pytest.fixture
async def spares(tmp_path: Path, engine: Slow) -> AsyncIterator[Spares]:
    disk = Disk()
    instance = Instance(Descriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)))
    yield Spares(instance, disk, engine)
    disk.close()
    instance.close()


def directories(tmp_path: Path) -> int:
    return sum(one.is_dir() for one in tmp_path.glob("instances/*/*"))


async def test_a_spare_whose_caller_went_is_the_next_ones(
    spares: Spares, engine: Slow, tmp_path: Path
) -> None:
    spares.fill()
    gone = asyncio.get_running_loop().create_task(spares.take(network=False))
    await asyncio.sleep(0)
    gone.cancel()
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await gone
        engine.go_on.set()
        taken = [await spares.take(network=False) for _ in range(SPARES)]
        assert len(engine.made) == SPARES, "none was made anew"
        assert {id(one.running) for one in taken} == {id(one) for one in engine.made}
        await spares.close()
    for one in taken:
        await spares._discard(one)
    assert directories(tmp_path) == 0


async def test_a_spare_that_died_is_removed_and_not_handed_out(
    spares: Spares, engine: Slow, tmp_path: Path
) -> None:
    engine.go_on.set()
    spares.fill()
    async with asyncio.timeout(10):
        dead, alive = [await task for task in spares._ready]
        assert dead.running is not None
        dead.running.ended.set()
        taken = await spares.take(network=False)
        assert taken is alive
        assert directories(tmp_path) == 1
        await spares._discard(taken)


async def test_one_that_does_not_come_up_leaves_neither_directory_nor_descriptor(
    spares: Spares, engine: Slow, tmp_path: Path
) -> None:
    engine.fails = True
    engine.go_on.set()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(SandboxUnavailableError):
            await spares.take(network=False)
    assert directories(tmp_path) == 0
    assert len(os.listdir("/proc/self/fd")) < before + 10
