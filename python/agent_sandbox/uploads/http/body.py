"""The body of one PUT with its deadlines: as chunks, or put into buffers by the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

from starlette.types import Receive, Scope

from agent_sandbox.errors import UploadBodyError, UploadBodyTimeoutError
from agent_sandbox.http1.fill import FILL, Filler


class Body:
    """Chunks that end only when the server says that the body ended, and the count is right.

    Both deadlines run on the loop's monotonic clock. Idle time counts only while the client is
    waited for, so slow storage costs it nothing but the total.

    Args:
        scope: Of the request.
        receive: Of the request.
        size_bytes: The declared size.
        idle_s: Longest wait for the next bytes.
        end: When the whole must have arrived, on the loop's clock.
        late: Called before the error of a missed deadline goes its way.

    Every way to read it raises:
        UploadBodyError: E7015, the body is short, long, or broke off.
        UploadBodyTimeoutError: E7016, nothing came for `idle_s`, or `end` passed.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        size_bytes: int,
        *,
        idle_s: float,
        end: float,
        late: Callable[[], None] = lambda: None,
    ) -> None:
        extension = (scope.get("extensions") or {}).get(FILL)
        self._filler: Filler | None = extension and extension["filler"]
        self._receive = receive
        self._left = size_bytes
        self._more = True
        self._idle_s = idle_s
        self._end = end
        self._late = late
        self._clock = asyncio.get_running_loop().time

    @property
    def fills(self) -> bool:
        """Whether the server can `fill`; if so, either that or the chunks are for use."""
        return self._filler is not None

    @property
    def filled(self) -> int:
        """Bytes that the last `fill` got, however it ended."""
        return self._filler.filled if self._filler is not None else 0

    async def fill(self, buffer: memoryview) -> None:
        """Fill all of `buffer` with the next bytes."""
        if self._filler is None:
            raise TypeError("the server does not fill")
        try:
            count = await self._filler.fill(buffer, idle_s=self._idle_s, end=self._end)
        except TimeoutError:
            self._refuse_late()
        if count < len(buffer):
            raise UploadBodyError
        self._in_time()

    def __aiter__(self) -> Body:
        """Return the chunks."""
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk that is not empty."""
        while self._more:
            try:
                async with asyncio.timeout_at(min(self._end, self._clock() + self._idle_s)):
                    message = await self._receive()
            except TimeoutError:
                self._refuse_late()
            if message["type"] != "http.request":
                raise UploadBodyError
            chunk: bytes = message.get("body", b"")
            self._more = message.get("more_body", False)
            self._left -= len(chunk)
            if self._left < 0 or (not self._more and self._left):
                raise UploadBodyError
            self._in_time()
            if chunk:
                return chunk
        raise StopAsyncIteration

    def _in_time(self) -> None:
        if self._clock() >= self._end:
            self._refuse_late()

    def _refuse_late(self) -> NoReturn:
        self._late()
        raise UploadBodyTimeoutError from None
