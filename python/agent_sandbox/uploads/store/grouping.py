"""Work that waits for the same turn and is then done together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio

from agent_sandbox.errors import UploadBusyError, UploadError

J = TypeVar("J")
R = TypeVar("R")

MOST = 64
"""Most jobs that are done together."""


@dataclass(slots=True, eq=False)
class _Job(Generic[J, R]):
    work: J
    result: R | None = None
    error: UploadError | None = None
    done: bool = False


@dataclass(slots=True)
class _Group(Generic[J, R]):
    waiting: list[_Job[J, R]] = field(default_factory=list)
    leading: anyio.Lock = field(default_factory=anyio.Lock)
    members: int = 0


class Groups(Generic[J, R]):
    """Runs jobs of one key together, in order of arrival; of different keys, side by side.

    Nobody waits for a group to fill up: whoever comes first runs alone, and those that come
    meanwhile are the next group.

    Args:
        together: Does several jobs and returns a result for each. An `UploadError` of it is
            everybody's, and `UploadBusyError` also theirs who wait behind; anything else reaches
            the one who led, and the others get a plain error.
    """

    def __init__(self, together: Callable[[Sequence[J]], Awaitable[Sequence[R]]]) -> None:
        self._together = together
        self._groups: dict[Hashable, _Group[J, R]] = {}

    async def run(self, key: Hashable, work: J) -> R:
        """Do one job. Must not be cancelled: others may wait for what this one leads."""
        group = self._groups.setdefault(key, _Group())
        job: _Job[J, R] = _Job(work)
        group.waiting.append(job)
        group.members += 1
        try:
            while not job.done:
                async with group.leading:
                    if not job.done:
                        await self._lead(group)
        finally:
            group.members -= 1
            if not group.members:
                del self._groups[key]
        if job.error is not None:
            raise job.error from None
        return job.result  # type: ignore[return-value]  # set with `done`, and may be None

    async def _lead(self, group: _Group[J, R]) -> None:
        batch, group.waiting = group.waiting[:MOST], group.waiting[MOST:]
        try:
            results = await self._together([job.work for job in batch])
            for job, result in zip(batch, results, strict=True):
                job.result = result
        except UploadError as error:
            if isinstance(error, UploadBusyError):
                # The database was waited for in vain. Those behind have waited as long already,
                # and must not begin a wait of their own.
                batch += group.waiting
                group.waiting = []
            for job in batch:
                job.error = type(error)(**vars(error))
        except BaseException:
            for job in batch:
                job.error = UploadError()
            raise
        finally:
            for job in batch:
                job.done = True
