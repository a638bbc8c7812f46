"""The reaper: what is recorded is destroyed, however the service answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from agent_sandbox.errors import SandboxNotFoundError, SandboxUnavailableError
from agent_sandbox.mcp_server import reaper
from agent_sandbox.mcp_server.reaper import PARALLEL_DESTROYS, Reaper

WAIT_S = 10


class Destroyer:
    """Answers a destroy as the test says."""

    def __init__(self, answer: Callable[[int], bool | Exception]) -> None:
        self.answer = answer
        self.calls: Counter[str] = Counter()
        self.open = anyio.Event()
        self.open.set()
        self.at_once = self.most_at_once = 0

    async def release(self, sandbox_id: str) -> bool:
        self.calls[sandbox_id] += 1
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        try:
            await self.open.wait()
        finally:
            self.at_once -= 1
        answer = self.answer(self.calls[sandbox_id])
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def reaping(client: Destroyer) -> AsyncIterator[Reaper]:
    async with anyio.create_task_group() as tasks:
        yield Reaper(client, tasks)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("gone", [True, False, SandboxNotFoundError()])
async def test_destroyed_and_unknown_both_count_as_gone(gone: bool | Exception) -> None:
    client = Destroyer(lambda _: gone)
    async with reaping(client) as it:
        it.doom(["a", "b"])
        assert it.recorded == {"a", "b"}
        assert await it.drain(WAIT_S) == set()
        assert client.calls == {"a": 1, "b": 1}


@pytest.mark.parametrize("error", [SandboxUnavailableError(), RuntimeError()])
async def test_a_failing_destroy_is_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reaper, "FIRST_PAUSE_S", 0.001)
    client = Destroyer(lambda count: error if count < 4 else True)
    async with reaping(client) as it:
        it.doom(["a"])
        assert await it.drain(WAIT_S) == set()
        assert client.calls == {"a": 4}


@pytest.mark.parametrize("error", [SandboxUnavailableError(), RuntimeError()])
async def test_of_the_failures_of_one_sandbox_the_first_and_every_tenth_are_logged(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(reaper, "FIRST_PAUSE_S", 0.0)
    client = Destroyer(lambda count: error if count < 21 else True)
    async with reaping(client) as it:
        it.doom(["a"])
        assert await it.drain(WAIT_S) == set()
    assert len(caplog.records) == 3
    if isinstance(error, SandboxUnavailableError):
        tries = [record.getMessage().partition("try ")[2] for record in caplog.records]
        assert [text.partition(")")[0] for text in tries] == ["1", "10", "20"]


async def test_the_pauses_between_tries_grow_and_stay_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[float] = []

    async def note(seconds: float) -> None:
        pauses.append(seconds)

    client = Destroyer(lambda count: SandboxUnavailableError() if count < 12 else True)
    async with reaping(client) as it:
        with monkeypatch.context() as patched:
            patched.setattr(anyio, "sleep", note)
            it.doom(["a"])
            assert await it.drain(WAIT_S) == set()
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-2:] == [reaper.LONGEST_PAUSE_S] * 2


async def test_a_slow_destroy_is_recorded_until_it_is_done_and_drain_is_bounded() -> None:
    client = Destroyer(lambda _: True)
    client.open = anyio.Event()
    async with reaping(client) as it:
        it.doom(["a"])
        assert await it.drain(0.01) == {"a"}
        client.open.set()
        with anyio.fail_after(WAIT_S):  # told at the end, not when the time of `drain` is over
            assert await it.drain(10 * WAIT_S) == set()


async def test_what_is_recorded_already_is_not_destroyed_twice() -> None:
    client = Destroyer(lambda _: True)
    async with reaping(client) as it:
        it.doom(["a"])
        it.doom(["a", "b"])
        it.doom([])
        assert await it.drain(WAIT_S) == set()
        assert client.calls == {"a": 1, "b": 1}
        it.doom(["a"])
        await it.drain(WAIT_S)
        assert client.calls["a"] == 2


async def test_many_sandboxes_are_destroyed_some_at_a_time() -> None:
    client = Destroyer(lambda _: True)
    client.open = anyio.Event()
    async with reaping(client) as it:
        it.doom([str(number) for number in range(100)])
        await anyio.wait_all_tasks_blocked()
        client.open.set()
        assert await it.drain(WAIT_S) == set()
        assert client.most_at_once == PARALLEL_DESTROYS
        assert len(client.calls) == 100
