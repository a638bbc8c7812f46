"""The bounded read against a peer that breaks every rule (R02-R32 of the test matrix)."""

from __future__ import annotations

import contextlib
import gzip
import random
import socket
import threading
import time
from typing import Any

import pytest
from tests.client.conftest import Connect, assert_clean, refused, sends
from tests.support.bad_peer import TOKEN, BadPeer, Script, Talk, answer, chunked
from tests.support.environment import PROXIES, without

from agent_sandbox.client import _sinks
from agent_sandbox.client._in_time import Rescue
from agent_sandbox.models import (
    FileSizeLimitError,
    TransferError,
    TransferTimeoutError,
)

GZIP = b"Content-Encoding: gzip\r\n"

# --- Whole answers ----------------------------------------------------------------------------

GOOD = {
    "length": (answer(b"abc"), b"abc"),
    "empty": (answer(b""), b""),
    "chunked": (chunked(b"a", b"bc"), b"abc"),
    "chunked and empty": (chunked(), b""),
    "identity in capitals and spaces": (
        answer(b"abc", headers=b"Content-Encoding:  IDENTITY \r\n"),
        b"abc",
    ),
    "identity twice": (answer(b"abc", headers=b"Content-Encoding: identity\r\n" * 2), b"abc"),
    "length twice, the same": (answer(b"abc", headers=b"Content-Length: 3\r\n"), b"abc"),
    "HTTP/1.0 with a length": (answer(b"abc", version=b"HTTP/1.0"), b"abc"),
    "an informational answer first": (
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + answer(b"abc"),
        b"abc",
    ),
}


@pytest.mark.parametrize(("wire", "expected"), GOOD.values(), ids=GOOD)
async def test_a_proved_body_is_returned(connect: Connect, wire: bytes, expected: bytes) -> None:
    with BadPeer(sends(wire)) as peer:
        async with connect(peer) as subject:
            assert await subject.files("read_bytes", "/f", max_bytes=3) == expected
            assert subject.busy() == 0
            assert peer.data_requests[0].header("accept-encoding") == ["identity"]
            assert peer.data_requests[0].header("x-access-token") == [TOKEN]


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 1_000_000])
async def test_a_body_of_exactly_the_bound_is_returned(connect: Connect, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    half = size // 2
    for wire in (answer(body), chunked(*filter(None, (body[:half], body[half:])))):
        with BadPeer(sends(wire)) as peer:
            async with connect(peer) as subject:
                assert await subject.files("read_bytes", "/f", max_bytes=size) == body


async def test_a_gzip_bomb_that_says_identity_is_returned_raw(connect: Connect) -> None:
    bomb = gzip.compress(bytes(1_000_000))
    wire = answer(bomb, headers=b"Content-Encoding: identity\r\n")
    with BadPeer(sends(wire)) as peer:
        async with connect(peer) as subject:
            assert await subject.files("read_bytes", "/f", max_bytes=len(bomb)) == bomb


async def test_the_unbounded_read_accepts_gzip(connect: Connect) -> None:
    wire = answer(gzip.compress(b"abc" * 1000), headers=b"Content-Encoding: gzip\r\n")
    with BadPeer(sends(wire)) as peer:
        async with connect(peer) as subject:
            assert await subject.files("read_bytes", "/f") == b"abc" * 1000
            assert peer.data_requests[0].header("accept-encoding") == ["gzip"]
            assert subject.busy() == 0


# --- R02-R11: framing -------------------------------------------------------------------------

BROKEN = {
    "R02 short": (answer(b"abcde", length=9), True),
    "R04 neither length nor chunked": (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
    "R04 HTTP/1.0, ends with the connection": (b"HTTP/1.0 200 OK\r\n\r\nabc", True),
    "R04 connection: close, no length": (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nabc", True),
    "R05 length is a word": (b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\nabc", True),
    "R06 length is negative": (b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nabc", True),
    "R06 length has a plus": (b"HTTP/1.1 200 OK\r\nContent-Length: +3\r\n\r\nabc", True),
    "R07 lengths differ": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        True,
    ),
    "R08 chunked and length": (chunked(b"abc", headers=b"Content-Length: 3\r\n"), False),
    "R08 gzip, chunked": (
        chunked(b"abc").replace(b"g: chunked", b"g: gzip, chunked"),
        False,
    ),
    "R08 chunked on HTTP/1.0": (chunked(b"abc").replace(b"HTTP/1.1", b"HTTP/1.0"), True),
    "R10 chunked, cut": (chunked(b"abc", end=b""), True),
    "R10 chunked, cut inside a chunk": (chunked(b"abc", end=b"5\r\nab"), True),
    "R11 chunk size is a word": (chunked(b"abc", end=b"zz\r\n\r\n"), False),
    "no answer": (b"", True),
    "no HTTP": (b"SSH-2.0-peer\r\n\r\n", True),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", True),
    "R27 a head of 200 KB": (answer(b"abc", headers=b"X-Long: %s\r\n" % (b"a" * 200_000)), False),
}


@pytest.mark.parametrize(("wire", "fin"), BROKEN.values(), ids=BROKEN)
async def test_a_body_whose_end_is_not_proved_is_refused(
    connect: Connect, wire: bytes, fin: bool
) -> None:
    await refused(connect, sends(wire, fin=fin), TransferError)


async def test_r03_bytes_behind_the_end_are_dropped_with_their_connection(
    connect: Connect,
) -> None:
    """The connection is not used again: its next answer would be what was smuggled in."""
    smuggled = answer(b"abc") + answer(b"EVIL")
    with BadPeer(sends(smuggled)) as peer:
        async with connect(peer) as subject:
            for _ in range(3):
                assert await subject.files("read_bytes", "/f", max_bytes=10) == b"abc"
            assert subject.busy() == 0
            talks = [talk for talk in peer.talks if talk.requests[-1].line.startswith("GET")]
            assert len(talks) == 3
            assert all(talk.ended.wait(10) for talk in talks)


@pytest.mark.parametrize(
    ("call", "arguments", "first", "error"),
    [
        ("list", ("/d",), b"no JSON", TransferError),
        ("stat", ("/d",), b"[]", TransferError),
        ("write", ("/f", b"abc"), b"[]", TransferError),
    ],
)
async def test_r03_bytes_behind_an_answer_that_is_refused_reach_no_later_call(
    connect: Connect, call: str, arguments: tuple[object, ...], first: bytes, error: type[Exception]
) -> None:
    with BadPeer(sends(answer(first) + answer(b"EVIL"))) as peer:
        async with connect(peer) as subject:
            for _ in range(2):
                with pytest.raises(error):
                    await subject.files(call, *arguments)
            assert subject.busy() == 0
            talks = [
                talk
                for talk in peer.talks
                for request in talk.requests
                if "/file" in request.line  # /files and the RPCs, not the control plane
            ]
            assert len(talks) == len({id(talk) for talk in talks}) == 2
            assert all(talk.ended.wait(10) for talk in talks)


async def test_a_good_connection_is_used_again(connect: Connect) -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            for _ in range(5):
                await subject.files("read_bytes", "/f", max_bytes=10)
            assert len(peer.talks) == 1


# --- The bound --------------------------------------------------------------------------------


def endless(talk: Talk) -> None:
    """Send chunks until the client goes."""
    talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        talk.send(b"10000\r\n" + bytes(65_536) + b"\r\n")


@pytest.mark.parametrize("limit", [0, 1, 1000, 1_048_576])
async def test_the_first_byte_past_the_bound_closes_the_response(
    connect: Connect, limit: int
) -> None:
    with BadPeer(endless) as peer:
        async with connect(peer) as subject:
            with pytest.raises(FileSizeLimitError) as caught:
                await subject.files("read_bytes", "/f", max_bytes=limit)
            assert caught.value.limit == limit
            assert caught.value.code == "E4003"
            assert_clean(caught.value)
            assert subject.busy() == 0
            assert peer.data_talk().ended.wait(10)


@pytest.mark.parametrize(
    "wire",
    [
        chunked(b"abc", b"d"),
        answer(b"abcd"),
        answer(b"abc", length=10**15),
        answer(b"", length=10**19),
    ],
    ids=["chunked", "length", "length that lies", "length over 2^63"],
)
async def test_one_byte_more_is_refused_however_it_is_framed(connect: Connect, wire: bytes) -> None:
    peer = await refused(connect, sends(wire), FileSizeLimitError, max_bytes=3)
    assert peer.data_talk().ended.is_set()


# --- R12-R17: encodings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Encoding: gzip\r\n",
        b"Content-Encoding: br\r\n",
        b"Content-Encoding: zstd\r\n",
        b"Content-Encoding: deflate\r\n",
        b"Content-Encoding: x-unknown\r\n",
        b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n",
        b"Content-Encoding: gzip\r\nContent-Encoding: identity\r\n",
        b"Content-Encoding: identity, GZIP\r\n",
    ],
)
async def test_an_encoded_body_is_refused_before_it_is_read(
    connect: Connect, headers: bytes
) -> None:
    def script(talk: Talk) -> None:
        # No byte of a body ever comes: only a client that does not wait for one gets further.
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n%s\r\n" % headers)
        assert talk.wait_end()

    started = time.monotonic()
    await refused(connect, script, TransferError)
    assert time.monotonic() - started < 5


# --- R18-R20: the clock -----------------------------------------------------------------------


async def test_a_slow_body_in_time_is_returned(connect: Connect) -> None:
    def script(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        talk.drip(b"abcde", 0.02)

    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            assert await subject.files("read_bytes", "/f", max_bytes=5, deadline_s=10) == b"abcde"


def _head_drip(talk: Talk) -> None:
    talk.drip(b"HTTP/1.1 200 OK\r\nX-Slow: " + b"a" * 10_000, 0.02)


def _body_drip(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n")
    talk.drip(b"a" * 10_000, 0.02)


def _body_stall(talk: Talk) -> None:
    talk.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
    talk.wait_end()


def _silence(talk: Talk) -> None:
    talk.wait_end()


@pytest.mark.parametrize("script", [_head_drip, _body_drip, _body_stall, _silence])
async def test_one_clock_runs_around_the_whole_read(
    connect: Connect, surface: str, http_client: str, script: Script
) -> None:
    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            started = time.monotonic()
            with pytest.raises(TransferTimeoutError) as caught:
                await subject.files("read_bytes", "/f", max_bytes=20_000, deadline_s=0.3)
            assert time.monotonic() - started < 3
            assert_clean(caught.value)
            if surface == "blocking" and http_client != "own" and script is _head_drip:
                # The caller is free in time. A blocking client of somebody else cannot be stopped
                # before its answer has a head; its thread ends with the peer.
                return
            assert subject.busy() == 0
            assert peer.data_talk().ended.wait(10)


async def test_the_default_deadline_of_a_bounded_read_is_120_seconds() -> None:
    from agent_sandbox.client.operations import transfer

    bounded = next(transfer.read_bytes("/f", 10, None))
    unbounded = next(transfer.read_bytes("/f", None, None))
    assert (bounded.deadline_s, unbounded.deadline_s) == (120.0, None)


def test_a_late_call_does_not_cut_the_connection_that_others_share_on_http_2() -> None:
    class Response:
        def __init__(self, version: str, sock: socket.socket) -> None:
            self.http_version = version
            self.extensions = {"network_stream": self}
            self._socket = sock

        def get_extra_info(self, name: str) -> socket.socket:
            return self._socket

    for version, rest in (("HTTP/2", b"x"), ("HTTP/1.1", b"")):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            rescue = Rescue()
            rescue.watch(Response(version, ours))
            assert rescue.cuts is (rest == b"")
            rescue.stop()
            with contextlib.suppress(BrokenPipeError):
                theirs.send(b"x")
            assert ours.recv(1) == rest


async def test_what_unpacks_is_whole(connect: Connect) -> None:
    """HTTP clients take a gzip body that breaks off for a good one."""
    whole, other = gzip.compress(b"abc" * 1000), gzip.compress(b"d")
    for data, expected in (
        (whole, b"abc" * 1000),
        (whole + other, b"abc" * 1000 + b"d"),
        (whole[:-9], None),
        (whole[:-1], None),
        (whole + b"x", None),
        (b"", None),
        (b"no gzip", None),
    ):
        for wire in (answer(data, headers=GZIP), chunked(*filter(None, [data]), headers=GZIP)):
            with BadPeer(sends(wire)) as peer:
                async with connect(peer) as subject:
                    if expected is None:
                        with pytest.raises(TransferError):
                            await subject.files("read_bytes", "/f")
                    else:
                        assert await subject.files("read_bytes", "/f") == expected
                    assert subject.busy() == 0


PIECE = _sinks.INFLATE_BYTES


@pytest.mark.parametrize(
    "sizes",
    [[0], [PIECE], [3 * PIECE], [3 * PIECE + 1, 2 * PIECE - 1], [PIECE, 0, PIECE]],
    ids=str,
)
@pytest.mark.parametrize("cut", [1, 100, 65_536])
async def test_what_unpacks_to_many_pieces_is_whole_however_it_is_cut(
    sizes: list[int], cut: int
) -> None:
    whole = [random.Random(0).randbytes(100_000) + bytes(max(size, 100_000)) for size in sizes]  # noqa: S311
    expected = [data[:size] for data, size in zip(whole, sizes, strict=True)]
    packed = b"".join(map(gzip.compress, expected))
    sink = _sinks.Gunzipped()
    for at in range(0, len(packed), cut):
        if sink.feed(packed[at : at + cut]):
            sink.spill()
    assert sink.finish() == b"".join(expected)


async def test_unpacking_holds_up_no_event_loop(
    connect: Connect, surface: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(0).randbytes(3 * PIECE)  # noqa: S311 - does not pack, so it is many chunks
    unpacked_in: list[int] = []
    spill = _sinks.Gunzipped.spill

    def recorded(self: _sinks.Gunzipped) -> None:
        unpacked_in.append(threading.get_ident())
        spill(self)

    monkeypatch.setattr(_sinks.Gunzipped, "spill", recorded)
    with BadPeer(sends(answer(gzip.compress(data, 1), headers=GZIP))) as peer:
        async with connect(peer) as subject:
            assert await subject.files("read_bytes", "/f") == data
    assert len(unpacked_in) >= 3
    assert threading.get_ident() not in unpacked_in


@pytest.mark.parametrize("coding", [b"br", b"gzip, gzip", b",".join([b"gzip"] * 9_000), b"x"])
async def test_an_unbounded_read_unpacks_only_what_it_asked_for(
    connect: Connect, coding: bytes
) -> None:
    wire = answer(b"abc", headers=b"Content-Encoding: %s\r\n" % coding)
    await refused(connect, sends(wire), TransferError, max_bytes=None)


# --- R32 and arguments ------------------------------------------------------------------------


async def test_proxies_of_the_environment_are_ignored_for_loopback(
    connect: Connect, http_client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, PROXIES)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            assert await subject.files("read_bytes", "/f", max_bytes=3) == b"abc"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_bytes": True}, TypeError),
        ({"max_bytes": 1.0}, TypeError),
        ({"max_bytes": "1"}, TypeError),
        ({"max_bytes": -1}, ValueError),
        ({"max_bytes": 2**64}, OverflowError),
        ({"deadline_s": True}, TypeError),
        ({"deadline_s": "1"}, TypeError),
        ({"deadline_s": 0}, ValueError),
        ({"deadline_s": -1}, ValueError),
        ({"deadline_s": float("nan")}, ValueError),
        ({"deadline_s": float("inf")}, ValueError),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["read_bytes", "read_text", "stream"])
async def test_a_wrong_argument_is_refused_before_any_request(
    connect: Connect, method: str, arguments: dict[str, Any], expected: type[Exception]
) -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(expected):
                await subject.files(method, "/f", **arguments)
            assert peer.data_requests == []
