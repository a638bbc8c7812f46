"""Work that waits together is done together, and nobody is left waiting."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from agent_sandbox.errors import UploadBusyError, UploadError, UploadOutcomeUnknownError
from agent_sandbox.uploads.store.grouping import MOST, Groups


class Recorder:
    """Doubles numbers; the first batch waits until it may go on."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.batches: list[list[int]] = []
        self.may_go_on = anyio.Event()
        self.error = error

    async def __call__(self, works: Sequence[int]) -> list[int]:
        self.batches.append(list(works))
        await self.may_go_on.wait()
        if self.error is not None and len(works) > 1:
            raise self.error
        return [2 * work for work in works]


async def run_all(recorder: Recorder, count: int) -> list[object]:
    groups: Groups[int, int] = Groups(recorder)
    results: list[object] = [None] * count

    async def run(work: int) -> None:
        try:
            results[work] = await groups.run("key", work)
        except (UploadError, ZeroDivisionError) as error:
            results[work] = error

    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            group.start_soon(run, 0)
            await anyio.wait_all_tasks_blocked()
            for work in range(1, count):
                group.start_soon(run, work)
            await anyio.wait_all_tasks_blocked()
            recorder.may_go_on.set()
    assert groups._groups == {}
    return results


async def test_those_that_come_meanwhile_are_the_next_group_in_order() -> None:
    recorder = Recorder()
    assert await run_all(recorder, 2 * MOST) == [2 * work for work in range(2 * MOST)]
    assert recorder.batches == [
        [0],
        list(range(1, MOST + 1)),
        list(range(MOST + 1, 2 * MOST)),
    ]


async def test_other_keys_do_not_wait() -> None:
    recorder = Recorder()
    groups: Groups[int, int] = Groups(recorder)
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for work in range(3):
                group.start_soon(groups.run, work, work)
            await anyio.wait_all_tasks_blocked()
            assert sorted(recorder.batches) == [[0], [1], [2]]
            recorder.may_go_on.set()


@pytest.mark.parametrize("error", [UploadBusyError(), UploadOutcomeUnknownError("unknown")])
async def test_an_error_is_everybody_s_and_each_has_an_object_of_its_own(
    error: UploadError,
) -> None:
    first, *others = await run_all(Recorder(error), 4)
    assert first == 0
    assert [(type(one), vars(one)) for one in others] == [(type(error), vars(error))] * 3
    assert len({id(one) for one in others}) == 3


async def test_those_who_wait_behind_a_busy_database_do_not_wait_again() -> None:
    class Busy(Recorder):
        async def __call__(self, works: Sequence[int]) -> list[int]:
            await super().__call__(works)
            raise UploadBusyError

    recorder = Busy()
    results = await run_all(recorder, 3 * MOST)
    assert {type(one) for one in results} == {UploadBusyError}
    assert recorder.batches == [[0]]


async def test_a_fault_of_ours_reaches_one_and_leaves_nobody_waiting() -> None:
    first, *others = await run_all(Recorder(ZeroDivisionError()), 4)
    assert first == 0
    assert sorted(type(one).__name__ for one in others) == [
        "UploadError",
        "UploadError",
        "ZeroDivisionError",
    ]
