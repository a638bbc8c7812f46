"""The life of a stream: one request, one end, and what reading on means on both surfaces."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.client.conftest import Connect, Subject, sends
from tests.support.bad_peer import WAIT_S, BadPeer, Talk, answer, chunked
from tests.support.express import wait_until

from agent_sandbox.client._streams import ClosedStreamError
from agent_sandbox.models import (
    AgentSandboxError,
    FileMissingError,
    TransferError,
    TransferTimeoutError,
)
from agent_sandbox.wire import connect as wire


class Reader:
    """A stream of either surface, whose steps are awaited."""

    def __init__(self, subject: Subject, method: str, **options: Any) -> None:
        self.blocking = subject.blocking
        self.stream = getattr(subject.sandbox.files, method)("/f", **options)

    async def _step(self, asynchronous: str, blocking: str) -> Any:
        if not self.blocking:
            return await getattr(self.stream, asynchronous)()
        # A StopIteration cannot be raised through a future.
        try:
            return await anyio.to_thread.run_sync(getattr(self.stream, blocking))
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration):
                raise StopAsyncIteration from None
            raise

    async def enter(self) -> None:
        await self._step("__aenter__", "__enter__")

    async def next(self) -> Any:
        if not self.blocking:
            return await anext(self.stream)
        nothing = object()
        item = await anyio.to_thread.run_sync(lambda: next(self.stream, nothing))
        if item is nothing:
            raise StopAsyncIteration
        return item

    async def close(self) -> None:
        await self._step("aclose", "close")


def events(*names: str, end: bytes = b"") -> bytes:
    messages = [b'{"start":{}}'] + [
        json.dumps({"filesystem": {"name": name, "type": "EVENT_TYPE_CREATE"}}).encode()
        for name in names
    ]
    return b"".join(map(wire.encode_envelope, messages)) + end


GONE = wire.encode_end(wire.ErrorBody(code="not_found"))

REFUSED = {
    "status": (answer(b"{}", status=b"404 x"), FileMissingError),
    "cut head": (b"HTTP/1.1 200 OK\r\nContent-Le", TransferError),
    "encoded": (answer(b"x", headers=b"Content-Encoding: gzip\r\n"), TransferError),
}


@pytest.mark.parametrize(("data", "error"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("method", ["stream", "watch"])
async def test_a_stream_that_failed_to_open_sends_no_second_request(
    connect: Connect, method: str, data: bytes, error: type[AgentSandboxError]
) -> None:
    after = StopAsyncIteration if method == "watch" else ClosedStreamError
    with BadPeer(sends(data, fin=True)) as peer:
        async with connect(peer) as subject:
            for first in (Reader.enter, Reader.next):
                reader = Reader(subject, method)
                seen = len(peer.data_requests)
                with pytest.raises(error):
                    await first(reader)
                for _ in range(2):
                    with pytest.raises(after):
                        await reader.next()
                    with pytest.raises(ClosedStreamError):
                        await reader.enter()
                assert len(peer.data_requests) == seen + 1
            assert subject.busy() == 0


async def test_a_stream_that_is_closed_while_it_opens_keeps_no_connection(
    connect: Connect, surface: str
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def script(talk: Talk) -> None:
        asked.set()
        assert go_on.wait(WAIT_S)
        talk.send(answer(b"", length=10))
        talk.wait_end()

    with BadPeer(script) as peer:
        async with connect(peer) as subject, asyncio.timeout(WAIT_S):
            reader = Reader(subject, "stream")
            opening = asyncio.ensure_future(reader.enter())
            await anyio.to_thread.run_sync(asked.wait, WAIT_S)
            await reader.close()
            go_on.set()
            with pytest.raises(ClosedStreamError):
                await opening
            assert subject.busy() == 0
            assert await anyio.to_thread.run_sync(peer.data_talk().ended.wait, WAIT_S)


async def test_a_body_that_drips_is_late_at_the_streams_own_time(connect: Connect) -> None:
    over = threading.Event()

    def script(talk: Talk) -> None:
        talk.send(answer(b"", length=1_000_000))
        while not over.wait(0.02):
            talk.send(b"x")

    with BadPeer(script) as peer:
        async with connect(peer) as subject, asyncio.timeout(WAIT_S):
            reader = Reader(subject, "stream", deadline_s=0.3)

            async def read() -> None:
                while await reader.next():
                    pass

            with pytest.raises(TransferTimeoutError):
                await read()
            assert subject.busy() == 0
        over.set()


async def test_a_stream_that_was_late_to_open_is_closed(connect: Connect, surface: str) -> None:
    with BadPeer(silent_after(b"")) as peer:
        async with connect(peer) as subject:
            reader = Reader(subject, "stream", deadline_s=0.2)
            with pytest.raises(TransferTimeoutError):
                await reader.next()
            with pytest.raises(ClosedStreamError):
                await reader.next()
            assert len(peer.data_requests) == 1
            assert subject.busy() == 0


async def test_an_iteration_ends_where_the_body_was_whole_and_nowhere_else(
    connect: Connect,
) -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            whole = Reader(subject, "stream")
            assert await whole.next() == b"abc"
            for _ in range(2):
                with pytest.raises(StopAsyncIteration):
                    await whole.next()
            await whole.close()
            with pytest.raises(StopAsyncIteration):
                await whole.next()
            early = Reader(subject, "stream")
            await early.enter()
            await early.close()
            with pytest.raises(ClosedStreamError, match="closed"):
                await early.next()
            with pytest.raises(ClosedStreamError):
                await early.enter()
            never = Reader(subject, "stream")
            await never.close()
            with pytest.raises(ClosedStreamError):
                await never.next()
            assert len(peer.data_requests) == 2
            assert subject.busy() == 0


async def test_a_watch_that_is_closed_ends(connect: Connect) -> None:
    def script(talk: Talk) -> None:
        talk.send(chunked(events("a", "b"), end=b""))
        talk.wait_end()

    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            reader = Reader(subject, "watch")
            assert (await reader.next()).name == "a"
            await reader.close()
            for _ in range(2):
                with pytest.raises(StopAsyncIteration):
                    await reader.next()
            assert len(peer.data_requests) == 1
            assert subject.busy() == 0


# --- F10: what is seen does not depend on how it was cut --------------------------------------

BROKEN = {
    "error at the end": (events("a", "b", end=GONE), FileMissingError),
    "no JSON": (events("a", "b", end=wire.encode_envelope(b"no json")), TransferError),
    "compressed": (events("a", "b", end=b"\x01\0\0\0\x01x"), TransferError),
    "huge": (events("a", "b", end=b"\0\xff\xff\xff\xff"), TransferError),
    "leads out": (events("a", "b", "../c"), TransferError),
    "behind the end": (events("a", "b", end=wire.encode_end() + b"x"), TransferError),
}


@pytest.mark.parametrize(("body", "error"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("size", [1, 50, 100_000])
async def test_what_came_whole_before_a_failure_is_handed_out_however_it_was_cut(
    connect: Connect, body: bytes, error: type[AgentSandboxError], size: int
) -> None:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]

    def script(talk: Talk) -> None:
        talk.send(chunked(*pieces, end=b""))  # and no end: the failure itself must be seen
        talk.wait_end()

    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            reader = Reader(subject, "watch")
            await reader.enter()
            assert [(await reader.next()).name for _ in range(2)] == ["a", "b"]
            with pytest.raises(error) as caught:
                await reader.next()
            assert type(caught.value) is error
            with pytest.raises(StopAsyncIteration):
                await reader.next()
            assert subject.busy() == 0
            assert await anyio.to_thread.run_sync(peer.data_talk().ended.wait, WAIT_S)


# --- F17: closing while somebody reads --------------------------------------------------------


def silent_after(data: bytes) -> Callable[[Talk], None]:
    def script(talk: Talk) -> None:
        talk.send(data)
        talk.wait_end()

    return script


WAITING = {
    "watch": (chunked(events(), end=b""), StopIteration),
    "stream": (answer(b"", length=10), ClosedStreamError),
}


@pytest.mark.parametrize("http_client", ["own", "httpx2", "httpx"])
@pytest.mark.parametrize("surface", ["blocking"])
@pytest.mark.parametrize("method", WAITING)
async def test_a_blocking_reader_is_woken_when_another_thread_closes_its_stream(
    connect: Connect, method: str
) -> None:
    data, expected = WAITING[method]
    with BadPeer(silent_after(data)) as peer:
        async with connect(peer) as subject:
            stream = getattr(subject.sandbox.files, method)("/d")
            found: list[BaseException] = []

            def read() -> None:
                try:
                    next(stream)
                except (StopIteration, Exception) as error:  # noqa: BLE001 - looked at below
                    found.append(error)

            reader = threading.Thread(target=read)
            reader.start()
            await anyio.to_thread.run_sync(wait_until, lambda: stream._chunks is not None)
            await anyio.to_thread.run_sync(stream.close)
            await anyio.to_thread.run_sync(reader.join, WAIT_S)
            assert not reader.is_alive()
            assert [type(error) for error in found] == [expected]
            assert subject.busy() == 0
            assert await anyio.to_thread.run_sync(peer.data_talk().ended.wait, WAIT_S)


@pytest.mark.parametrize("http_client", ["own", "httpx2", "httpx"])
@pytest.mark.parametrize("surface", ["async"])
@pytest.mark.parametrize("method", WAITING)
async def test_an_async_reader_is_woken_when_another_task_closes_its_stream(
    connect: Connect, method: str
) -> None:
    data, expected = WAITING[method]
    with BadPeer(silent_after(data)) as peer:
        async with connect(peer) as subject:
            stream = getattr(subject.sandbox.files, method)("/d")
            await stream.__aenter__()
            reader = asyncio.ensure_future(anext(stream))
            while not stream._reading:  # noqa: ASYNC110 - nothing else tells
                await asyncio.sleep(0)
            await stream.aclose()
            with anyio.fail_after(WAIT_S):
                ends = StopAsyncIteration if expected is StopIteration else expected
                with pytest.raises(ends):
                    await reader
            assert subject.busy() == 0
            assert await anyio.to_thread.run_sync(peer.data_talk().ended.wait, WAIT_S)


@pytest.mark.parametrize("http_client", ["own", "httpx2"])
@pytest.mark.parametrize("surface", ["blocking"])
async def test_closing_a_stream_that_was_whole_cuts_no_connection_of_the_pool(
    connect: Connect,
) -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            reader = Reader(subject, "stream")
            assert await reader.next() == b"abc"
            with pytest.raises(StopAsyncIteration):
                await reader.next()
            await reader.close()
            assert await subject.files("read_bytes", "/f", max_bytes=3) == b"abc"
            assert len(peer.talks) == 1
