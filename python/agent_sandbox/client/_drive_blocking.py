"""Runs operations over a blocking client of httpx2 or httpx."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Protocol, TypeVar

from agent_sandbox.client._calls import Call, Operation, Sink, SpillingSink, Target
from agent_sandbox.client._content import Content
from agent_sandbox.client._deadline import until
from agent_sandbox.client._exchange import (
    WITHOUT_DEADLINE,
    blame,
    faults_of,
    has_leftover,
    head_of,
    headers_of,
    url_of,
)
from agent_sandbox.client._in_time import Rescue, in_time
from agent_sandbox.errors import AgentSandboxError, SandboxUnavailableError

T = TypeVar("T")


class BlockingHttpClient(Protocol):
    """What `httpx2.Client` and `httpx.Client` have in common here."""

    def build_request(
        self,
        method: str,
        url: Any,
        *,
        content: Any = ...,
        headers: Any = ...,
        timeout: Any = ...,
    ) -> Any: ...

    def send(self, request: Any, *, stream: bool = ..., follow_redirects: Any = ...) -> Any: ...

    def close(self) -> None: ...


class BlockingDriver:
    """Runs operations; safe for any number of threads.

    Args:
        http: The client; its owner closes it.
        exact: Whether the client's transport keeps the clock of `until`. Any other client waits
            in a thread of its own, so that its caller is free when time is over.
    """

    def __init__(self, http: BlockingHttpClient, *, exact: bool) -> None:
        self._http = http
        self._exact = exact
        self.faults = faults_of(http)
        self._pid = os.getpid()

    def run(self, operation: Operation[T], target: Target) -> T:
        """Return the result of an operation.

        Every response is closed when this returns or raises.
        """
        try:
            call = next(operation)
            while True:
                try:
                    value = self._perform(call, target)
                except AgentSandboxError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(value)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            operation.close()

    def open(self, call: Call[T], target: Target) -> tuple[Any, T]:
        """Send a call and return its response with what `accept` made of the head.

        The caller closes the response; on failure it is closed here.
        """
        if os.getpid() != self._pid:
            raise SandboxUnavailableError  # a forked child must not talk on its parent's sockets
        content: Any = call.content
        if isinstance(content, Content):
            content = content.for_blocking()
        whole = call.deadline_s
        timeout = WITHOUT_DEADLINE if whole is None else (whole, whole, whole, whole)
        try:
            request = self._http.build_request(
                call.method,
                url_of(call, target),
                content=content,
                headers=headers_of(call, target),
                timeout=timeout,
            )
            response = self._http.send(request, stream=True, follow_redirects=False)
        except self.faults as fault:
            if isinstance(call.content, Content) and call.content.failure is not None:
                raise  # the caller's own source failed, whatever it raised
            raise blame(call, fault) from None
        try:
            return response, call.accept(head_of(response))
        except BaseException:
            self.close(response)
            raise

    def close(self, response: Any) -> None:
        """Close a response, its connection too."""
        with contextlib.suppress(*self.faults):
            if has_leftover(response):  # they would be the next request's answer
                response.extensions["network_stream"].close()
            response.close()

    def _perform(self, call: Call[Sink[T]], target: Target) -> T:
        if call.deadline_s is None:
            return self._attempt(call, target, Rescue())
        if self._exact:
            with until(time.monotonic() + call.deadline_s):
                return self._attempt(call, target, Rescue())
        return in_time(
            lambda rescue: self._attempt(call, target, rescue),
            call.deadline_s,
            call.timeout_error,
        )

    def _attempt(self, call: Call[Sink[T]], target: Target, rescue: Rescue) -> T:
        response, sink = self.open(call, target)
        rescue.watch(response)
        try:
            # `stream` itself: the layers of httpx's iterators cost time.
            if isinstance(sink, SpillingSink):
                for chunk in response.stream:
                    if sink.feed(chunk):
                        sink.spill()
            else:
                feed = sink.feed
                for chunk in response.stream:
                    feed(chunk)
            rescue.end()
            value = sink.finish()
        except self.faults as fault:
            sink.discard()
            self.close(response)
            raise blame(call, fault) from None
        except BaseException:
            sink.discard()
            self.close(response)
            raise
        self.close(response)
        return value
