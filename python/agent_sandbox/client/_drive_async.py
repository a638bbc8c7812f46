"""Runs operations over an async client of httpx2 or httpx."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any, Protocol, TypeVar

import anyio
import anyio.to_thread

from agent_sandbox.client._calls import Call, Operation, Sink, SpillingSink, Target
from agent_sandbox.client._content import Content
from agent_sandbox.client._exchange import (
    WITHOUT_DEADLINE,
    Timeouts,
    blame,
    faults_of,
    has_leftover,
    head_of,
    headers_of,
    url_of,
)
from agent_sandbox.errors import AgentSandboxError, SandboxUnavailableError
from agent_sandbox.limits import CLOSE_TIMEOUT_S

T = TypeVar("T")

NO_TIMEOUTS: Timeouts = (None, None, None, None)
"""The clock around the whole call bounds every wait within."""


class AsyncHttpClient(Protocol):
    """What `httpx2.AsyncClient` and `httpx.AsyncClient` have in common here."""

    def build_request(
        self,
        method: str,
        url: Any,
        *,
        content: Any = ...,
        headers: Any = ...,
        timeout: Any = ...,
    ) -> Any: ...

    async def send(
        self, request: Any, *, stream: bool = ..., follow_redirects: Any = ...
    ) -> Any: ...

    async def aclose(self) -> None: ...


class AsyncDriver:
    """Runs operations; safe for any number of tasks of one event loop.

    Args:
        http: The client; its owner closes it.
    """

    def __init__(self, http: AsyncHttpClient) -> None:
        self._http = http
        self.faults = faults_of(http)
        self._pid = os.getpid()

    async def run(self, operation: Operation[T], target: Target) -> T:
        """Return the result of an operation.

        Every response is closed when this returns, raises or is cancelled.
        """
        try:
            call = next(operation)
            while True:
                try:
                    value = await self._perform(call, target)
                except AgentSandboxError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(value)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            operation.close()

    async def open(self, call: Call[T], target: Target) -> tuple[Any, T]:
        """Send a call and return its response with what `accept` made of the head.

        The caller closes the response; on failure it is closed here.
        """
        if os.getpid() != self._pid:
            raise SandboxUnavailableError  # a forked child must not talk on its parent's sockets
        content: Any = call.content
        if isinstance(content, Content):
            content = content.for_async()
        timeout = WITHOUT_DEADLINE if call.deadline_s is None else NO_TIMEOUTS
        try:
            request = self._http.build_request(
                call.method,
                url_of(call, target),
                content=content,
                headers=headers_of(call, target),
                timeout=timeout,
            )
            response = await self._http.send(request, stream=True, follow_redirects=False)
        except self.faults as fault:
            if isinstance(call.content, Content) and call.content.failure is not None:
                raise  # the caller's own source failed, whatever it raised
            raise blame(call, fault) from None
        try:
            return response, call.accept(head_of(response))
        except BaseException:
            await self.close(response)
            raise

    async def close(self, response: Any) -> None:
        """Close a response, its connection too, and wait `CLOSE_TIMEOUT_S` at most.

        The close has a task of its own: httpcore shields its clean-up, so that a close that hangs
        could not be left otherwise, and a cancelled caller could not wait for it.
        """
        if response.is_closed:
            return
        with anyio.CancelScope(shield=True):
            try:
                asyncio.get_running_loop()
            except RuntimeError:  # not asyncio: the bound holds only where the close can be stopped
                with anyio.move_on_after(CLOSE_TIMEOUT_S), contextlib.suppress(*self.faults):
                    await _close(response)
                return
            task = asyncio.ensure_future(_close(response))
            _closing.add(task)
            task.add_done_callback(_closed)
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)

    async def _perform(self, call: Call[Sink[T]], target: Target) -> T:
        with anyio.move_on_after(call.deadline_s):
            return await self._attempt(call, target)
        raise call.timeout_error

    async def _attempt(self, call: Call[Sink[T]], target: Target) -> T:
        response, sink = await self.open(call, target)
        try:
            # `stream` itself: the layers of httpx's iterators cost time, and close without a bound.
            if isinstance(sink, SpillingSink):
                async for chunk in response.stream:
                    if sink.feed(chunk):
                        await anyio.to_thread.run_sync(sink.spill)
            else:
                feed = sink.feed
                async for chunk in response.stream:
                    feed(chunk)
            value: T
            value = await anyio.to_thread.run_sync(sink.finish) if sink.slow else sink.finish()
        except self.faults as fault:
            sink.discard()
            await self.close(response)
            raise blame(call, fault) from None
        except BaseException:
            sink.discard()
            await self.close(response)
            raise
        await self._release(response)
        return value

    async def _release(self, response: Any) -> None:
        """Hand the connection of a response that was read to its end back to the pool."""
        with (
            anyio.move_on_after(CLOSE_TIMEOUT_S, shield=True),
            contextlib.suppress(*self.faults),
        ):
            await _close(response)


async def _close(response: Any) -> None:
    """Close a response; its connection too where bytes came behind its end."""
    if has_leftover(response):
        await response.extensions["network_stream"].aclose()
    await response.aclose()


_closing: set[asyncio.Future[None]] = set()
"""Closes in progress: an event loop holds its tasks weakly."""


def _closed(task: asyncio.Future[None]) -> None:
    _closing.discard(task)
    if not task.cancelled():
        task.exception()  # how a response fails to close interests nobody; it is closed
