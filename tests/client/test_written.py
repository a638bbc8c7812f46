"""What counts as a write that succeeded: everything was sent, and the service says so."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.conftest import Connect, assert_clean, sends
from tests.support.bad_peer import WAIT_S, BadPeer, Talk, answer

from agent_sandbox.models import DeclarationError, TransferError


def written(size: int | str | None = None, count: int = 1) -> bytes:
    """Return a service's answer to a write."""
    entry: dict[str, Any] = {"name": "f", "type": "file", "path": "/f"}
    if size is not None:
        entry["size"] = size
    return answer(json.dumps([entry] * count).encode())


@pytest.mark.parametrize("kind", ["bytes", "iterator"])
async def test_a_success_before_everything_was_sent_is_a_broken_transfer(
    connect: Connect, kind: str
) -> None:
    """The peer answers at once, reads nothing and goes; HTTP clients then return its answer."""
    left = threading.Event()

    def script(talk: Talk) -> None:
        talk.send(written())
        talk.close()
        talk.sock.close()  # with unread bytes in it: the client's next writes fail
        left.set()

    def chunks() -> Iterator[bytes]:
        yield bytes(1_000_000)
        left.wait(WAIT_S)
        for _ in range(63):
            yield bytes(1_000_000)

    with BadPeer(script, read_writes=False) as peer:
        async with connect(peer) as subject:
            data = bytes(64_000_000) if kind == "bytes" else chunks()
            with pytest.raises(TransferError) as caught:
                await subject.files("write", "/f", data, deadline_s=30)
            assert type(caught.value) is TransferError
            assert_clean(caught.value)
            assert subject.busy() == 0


@pytest.mark.parametrize(
    "wire",
    [
        written(2),
        written(4),
        written(0),
        written(-3),
        written("three"),
        written(True),
        written(3, count=0),
        written(3, count=2),
        answer(b""),
        answer(b"<html>welcome to this network</html>"),
        answer(b"{}"),
        answer(b"[" * 30_000),
        answer(b"[]" + b" " * 100_000),
        answer(json.dumps([{"name": "f", "path": "/f"}]).encode(), status=b"202 Accepted"),
    ],
    ids=[
        "short", "long", "nothing", "negative", "a word", "true", "no file", "two files", "empty",
        "html", "object", "deep", "endless", "accepted",
    ],
)  # fmt: skip
async def test_an_answer_that_does_not_confirm_the_write_is_a_broken_transfer(
    connect: Connect, wire: bytes
) -> None:
    with BadPeer(sends(wire)) as peer:
        async with connect(peer) as subject:
            for data in (b"abc", iter([b"ab", b"c"])):
                with pytest.raises(TransferError) as caught:
                    await subject.files("write", "/f", data)
                assert type(caught.value) is TransferError
                assert_clean(caught.value)
            assert subject.busy() == 0


@pytest.mark.parametrize(
    "wire",
    [written(3), written("3"), written(), b"HTTP/1.1 204 No Content\r\n\r\n"],
    ids=["size", "size as text", "E2B, no size", "no content"],
)
async def test_an_answer_that_confirms_the_write_is_a_success(
    connect: Connect, wire: bytes
) -> None:
    with BadPeer(sends(wire)) as peer:
        async with connect(peer) as subject:
            for data in (b"abc", "abc", iter([b"ab", b"c"])):
                done = await subject.files("write", "/f", data)
                assert done.bytes_written == 3
            assert len(peer.talks) <= 2  # the connection is good for the next write


@pytest.mark.parametrize("data", [b"", b"abc", bytes(5_000_000)], ids=len)
async def test_what_is_known_before_it_is_sent_is_declared(connect: Connect, data: bytes) -> None:
    with BadPeer(sends(written())) as peer:
        async with connect(peer) as subject:
            done = await subject.files("write", "/f", data)
            assert done.sha256 == hashlib.sha256(data).hexdigest()
            request = peer.data_requests[0]
            assert request.header("content-length") == [str(len(data))]
            assert request.header("transfer-encoding") == []
            assert request.body == data


async def test_bytes_that_changed_on_their_way_are_a_broken_transfer(connect: Connect) -> None:
    """The caller declared nothing, so it is not told that its declaration was wrong."""
    code = f"agent-sandbox-error: {DeclarationError.code}\r\n".encode()
    with BadPeer(sends(answer(b"{}", status=b"400 Bad", headers=code))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError) as caught:
                await subject.files("write", "/f", b"abc")
            assert type(caught.value) is TransferError
            assert_clean(caught.value)
