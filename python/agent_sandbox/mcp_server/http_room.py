"""How many large requests are held in memory at once; the others wait unread."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from agent_sandbox.mcp_server.principals import ANONYMOUS, Principal

AT_ONCE = 64
"""Each is a body of 4 MiB at most, and a few times that while it is read."""

AT_ONCE_EACH = 32
"""Of one caller, where callers show who they are."""


class NoRoomError(Exception):
    """There was no room in time."""


class Room:
    """Lets large requests in, in the order in which they came.

    Args:
        wait_s: How long one waits for its turn.
        at_once: Requests that are in at once.
        at_once_each: The same for one caller.
    """

    def __init__(
        self, wait_s: float, at_once: int = AT_ONCE, at_once_each: int = AT_ONCE_EACH
    ) -> None:
        self._wait_s = wait_s
        self._all = anyio.Semaphore(at_once)
        self._at_once_each = at_once_each
        self._of: dict[Principal, anyio.Semaphore] = {}
        self._users: Counter[Principal] = Counter()

    @asynccontextmanager
    async def held(self, principal: Principal) -> AsyncIterator[None]:
        """Hold one place while the body runs.

        Raises:
            NoRoomError: None came free in time.
        """
        if principal == ANONYMOUS:  # everybody is
            async with self._place(self._all):
                yield
            return
        own = self._of.setdefault(principal, anyio.Semaphore(self._at_once_each))
        self._users[principal] += 1
        try:
            # One's own first: who waits for that holds no place of others.
            async with self._place(own), self._place(self._all):
                yield
        finally:
            self._users[principal] -= 1
            if not self._users[principal]:
                del self._users[principal], self._of[principal]

    @asynccontextmanager
    async def _place(self, places: anyio.Semaphore) -> AsyncIterator[None]:
        with anyio.move_on_after(self._wait_s) as waiting:
            await places.acquire()
        if waiting.cancelled_caught:
            raise NoRoomError
        try:
            yield
        finally:
            places.release()
