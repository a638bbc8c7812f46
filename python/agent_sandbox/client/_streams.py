"""Bodies that are handed on while they arrive, async and blocking."""

from __future__ import annotations

import contextlib
import threading
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
from agent_sandbox.client._exchange import Faults, blame
from agent_sandbox.client._in_time import Rescue
from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.limits import CLOSE_TIMEOUT_S

T = TypeVar("T")


class ClosedStreamError(RuntimeError):
    """A stream was read after it was closed before its end: what is missing must not look whole."""

    def __init__(self) -> None:
        super().__init__("the stream is closed")


class _State(Generic[T]):
    """What both kinds of stream keep."""

    def __init__(self, call: Call[Decoder[T]], target: Target) -> None:
        self._call, self._target = call, target
        self._items: deque[T] = deque()
        self._response: Any = None
        self._chunks: Any = None
        self._decoder: Decoder[T] | None = None
        self._ends_at: float | None = None
        self._failure: AgentSandboxError | None = None
        self._closed = False
        self._whole = False

    @property
    def decoder(self) -> Decoder[T] | None:
        """What turns the body into items, once the head has come."""
        return self._decoder

    def _start_clock(self) -> None:
        if self._call.deadline_s is not None:
            self._ends_at = time.monotonic() + self._call.deadline_s

    def _take(self, decoder: Decoder[T], chunk: bytes) -> None:
        """Decode a chunk; a failure in it waits until the items before it are handed out."""
        try:
            for item in decoder.feed(chunk):
                self._items.append(item)
        except AgentSandboxError as failure:
            self._failure = failure

    def _require_open(self) -> None:
        """Refuse to enter a stream that was closed before its end."""
        if self._closed and not self._whole:
            raise ClosedStreamError

    def _require_end(self) -> None:
        """Refuse to end an iteration that was cut by closing, where an end means something."""
        if not (self._whole or self._call.endless):
            raise ClosedStreamError

    def _say(self, error: Exception, *, was_closed: bool) -> None:
        """Raise what an error of reading means; returns where it is the end of a closed stream."""
        if was_closed:
            self._require_end()
        elif isinstance(error, AgentSandboxError):
            raise error
        else:
            raise blame(self._call, error) from None


class AsyncStream(_State[T], AsyncIterator[T]):
    """Items as they arrive; use it with `async with`, or read it to its end. One task reads it.

    Entering sends the request, once, and returns when the service has said that the stream runs.
    Any error closes it. The deadline is a time of the wall clock, also while nobody reads.

    An iteration that ends without an error was complete: reading on after the stream was closed
    before its end, or had failed, is a `RuntimeError` (`the stream is closed`). A watch has no end
    but its closing, so there closing ends the iteration.
    """

    def __init__(self, driver: AsyncDriver, call: Call[Decoder[T]], target: Target) -> None:
        super().__init__(call, target)
        self._driver = driver
        self._errors: Faults = (*driver.faults, AgentSandboxError)
        self._reading = False

    async def __aenter__(self) -> Self:
        await self._opened()
        self._require_open()
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
        """Close the response, its connection too; safe to call twice, and from another task."""
        self._closed = True
        self._items.clear()
        await self._release()

    async def _release(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            await self._driver.close(response)
        if not self._reading:
            chunks, self._chunks = self._chunks, None
            if hasattr(chunks, "aclose"):
                await chunks.aclose()

    async def _opened(self) -> None:
        if self._decoder is not None or self._closed:
            return
        self._start_clock()
        try:
            with anyio.move_on_after(self._left()):
                self._response, self._decoder = await self._driver.open(self._call, self._target)
            if self._decoder is None:
                raise self._call.timeout_error
            if self._closed:  # by another task, meanwhile
                await self._release()
                return
            self._chunks = self._response.stream.__aiter__()
            while not self._decoder.started and await self._more():
                pass
        except BaseException:
            await self.aclose()
            raise

    async def _more(self) -> bool:
        """Take the next chunk; returns False at the end."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            await self.aclose()
            raise failure
        if self._closed or self._decoder is None:
            self._require_end()
            return False
        try:
            with anyio.move_on_after(self._left()):
                self._reading = True
                try:
                    chunk = await anext(self._chunks, None)
                finally:
                    self._reading = False
                if chunk is None:
                    self._decoder.finish()
                    self._whole = True
                    await self.aclose()
                    return False
                self._take(self._decoder, chunk)
                if self._failure is not None:
                    await self._release()
                return True
            raise self._call.timeout_error
        except self._errors as error:
            was_closed = self._closed
            await self.aclose()
            self._say(error, was_closed=was_closed)
            return False
        except BaseException:
            await self.aclose()
            raise

    def _left(self) -> float | None:
        return None if self._ends_at is None else self._ends_at - time.monotonic()


class Stream(_State[T], Iterator[T]):
    """The blocking twin of `AsyncStream`. One thread reads it; any thread may close it.

    With a caller's own client the deadline is looked at between waits, each of which lasts at
    most `deadline_s`.
    """

    def __init__(self, driver: BlockingDriver, call: Call[Decoder[T]], target: Target) -> None:
        super().__init__(call, target)
        self._driver = driver
        self._errors: Faults = (*driver.faults, AgentSandboxError)
        self._rescue = Rescue()
        # Held while the reader waits; reentrant, as a signal handler may close what it interrupts.
        self._reading = threading.RLock()

    def __enter__(self) -> Self:
        self._opened()
        self._require_open()
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
        while True:
            # Not `while items`: another thread may clear them in between.
            with contextlib.suppress(IndexError):
                return self._items.popleft()
            if not self._more():
                raise StopIteration

    def close(self) -> None:
        """Close the response, its connection too; safe to call twice, and from another thread.

        A reader that waits for the next item is woken at once. Not while the request is still
        without an answer, nor on HTTP/2 (a client of your own), where other calls share the
        connection: there it ends with its next wait, after 120 s at most.
        """
        self._closed = True
        self._items.clear()
        self._release()

    def _release(self) -> None:
        self._rescue.stop()
        alone = self._reading.acquire(timeout=CLOSE_TIMEOUT_S)
        try:
            response, self._response = self._response, None
            self._chunks = None
            if response is not None:
                self._driver.close(response)
        finally:
            if alone:
                self._reading.release()

    def _opened(self) -> None:
        if self._decoder is not None or self._closed:
            return
        self._start_clock()
        try:
            with until(self._ends_at):
                response, decoder = self._driver.open(self._call, self._target)
            self._chunks = iter(response.stream)
            self._response, self._decoder = response, decoder
            self._rescue.watch(response)
            if self._closed:  # by another thread, meanwhile
                self._release()
                return
            while not decoder.started and self._more():
                pass
        except BaseException:
            self.close()
            raise

    def _more(self) -> bool:
        """Take the next chunk; returns False at the end."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.close()
            raise failure
        if self._closed or self._decoder is None:
            self._require_end()
            return False
        try:
            with self._reading, until(self._ends_at):
                chunk = None if self._chunks is None else next(self._chunks, None)
            if chunk is None:
                self._decoder.finish()
                with contextlib.suppress(TimeoutError):  # closed just now: it was whole before
                    self._rescue.end()
                self._whole = True
                self.close()
                return False
            if self._ends_at is not None and time.monotonic() > self._ends_at:
                raise self._call.timeout_error
            self._take(self._decoder, chunk)
            if self._failure is not None:
                self._release()
            return True
        except self._errors as error:
            was_closed = self._closed
            self.close()
            self._say(error, was_closed=was_closed)
            return False
        except BaseException:
            self.close()
            raise
