"""Bodies that are handed on while they arrive, async and blocking."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import anyio

from agent_sandbox.client._calls import Call, Decoder, Target
from agent_sandbox.client._deadline import until
from agent_sandbox.client._drive_async import AsyncDriver
from agent_sandbox.client._drive_blocking import BlockingDriver
from agent_sandbox.client._exchange import blame

T = TypeVar("T")


class _State(Generic[T]):
    """What both kinds of stream keep."""

    def __init__(self, call: Call[Decoder[T]], target: Target) -> None:
        self._call, self._target = call, target
        self._items: deque[T] = deque()
        self._response: Any = None
        self._chunks: Any = None
        self._decoder: Decoder[T] | None = None
        self._ends_at: float | None = None
        self._closed = False

    def _begin(self) -> None:
        if self._closed:
            raise RuntimeError("the stream is closed")
        if self._call.deadline_s is not None:
            self._ends_at = time.monotonic() + self._call.deadline_s


class AsyncStream(_State[T], AsyncIterator[T]):
    """Items as they arrive; use it with `async with`, or read it to its end.

    Entering sends the request and returns when the service has said that the stream runs. Any
    error closes it. The deadline is a time of the wall clock, also while nobody reads.
    """

    def __init__(self, driver: AsyncDriver, call: Call[Decoder[T]], target: Target) -> None:
        super().__init__(call, target)
        self._driver = driver

    async def __aenter__(self) -> Self:
        await self._opened()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def __anext__(self) -> T:
        await self._opened()
        while not self._items:
            if not await self._more():
                raise StopAsyncIteration
        return self._items.popleft()

    async def aclose(self) -> None:
        """Close the response, its connection too; safe to call twice."""
        self._closed = True
        self._items.clear()
        response, self._response = self._response, None
        chunks, self._chunks = self._chunks, None
        if response is not None:
            await self._driver.close(response)
        if hasattr(chunks, "aclose"):
            await chunks.aclose()

    async def _opened(self) -> None:
        if self._decoder is not None or self._closed:
            return
        self._begin()
        with anyio.move_on_after(self._left()):
            self._response, self._decoder = await self._driver.open(self._call, self._target)
            self._chunks = self._response.stream.__aiter__()
        if self._decoder is None:
            raise self._call.timeout_error
        while not self._decoder.started:
            if not await self._more():
                break

    async def _more(self) -> bool:
        """Take the next chunk; returns False at the end."""
        if self._chunks is None or self._decoder is None:
            return False
        try:
            with anyio.move_on_after(self._left()):
                try:
                    chunk = await anext(self._chunks)
                except StopAsyncIteration:
                    self._decoder.finish()
                    await self.aclose()
                    return False
                self._items.extend(self._decoder.feed(chunk))
                return True
            raise self._call.timeout_error
        except self._driver.faults as fault:
            await self.aclose()
            raise blame(self._call, fault) from None
        except BaseException:
            await self.aclose()
            raise

    def _left(self) -> float | None:
        return None if self._ends_at is None else self._ends_at - time.monotonic()


class Stream(_State[T], Iterator[T]):
    """The blocking twin of `AsyncStream`.

    With a caller's own client the deadline is looked at between waits, each of which lasts at
    most `deadline_s`.
    """

    def __init__(self, driver: BlockingDriver, call: Call[Decoder[T]], target: Target) -> None:
        super().__init__(call, target)
        self._driver = driver

    def __enter__(self) -> Self:
        self._opened()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __next__(self) -> T:
        self._opened()
        while not self._items:
            if not self._more():
                raise StopIteration
        return self._items.popleft()

    def close(self) -> None:
        """Close the response, its connection too; safe to call twice."""
        self._closed = True
        self._items.clear()
        response, self._response = self._response, None
        self._chunks = None
        if response is not None:
            self._driver.close(response)

    def _opened(self) -> None:
        if self._decoder is not None or self._closed:
            return
        self._begin()
        with until(self._ends_at):
            self._response, self._decoder = self._driver.open(self._call, self._target)
        self._chunks = iter(self._response.stream)
        while self._decoder is not None and not self._decoder.started:
            if not self._more():
                break

    def _more(self) -> bool:
        """Take the next chunk; returns False at the end."""
        if self._chunks is None or self._decoder is None:
            return False
        try:
            with until(self._ends_at):
                try:
                    chunk = next(self._chunks)
                except StopIteration:
                    self._decoder.finish()
                    self.close()
                    return False
            if self._ends_at is not None and time.monotonic() > self._ends_at:
                raise self._call.timeout_error
            self._items.extend(self._decoder.feed(chunk))
            return True
        except self._driver.faults as fault:
            self.close()
            raise blame(self._call, fault) from None
        except BaseException:
            self.close()
            raise
