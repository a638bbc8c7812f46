"""The readers without I/O: heads and chunks, whole and in pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_sandbox.http1.chunked import ChunkedDecoder, ChunkedError
from agent_sandbox.http1.head import (
    MAX_HEAD_BYTES,
    Framing,
    HeadError,
    find_end,
    parse,
    read_framing,
)


def test_the_authority_of_an_absolute_target_is_the_host() -> None:
    head = parse(b"GET http://a:1/b?c HTTP/1.1\r\nHost: z\r\nX: y\r\n\r\n")
    assert (head.path, head.query) == (b"/b", b"c")
    assert head.headers == [(b"host", b"a:1"), (b"x", b"y")]


def test_a_target_has_the_length_that_a_server_takes() -> None:
    long = b"GET /" + b"a" * 5_000 + b" HTTP/1.1\r\nHost: z\r\n\r\n"
    with pytest.raises(HeadError) as raised:
        parse(long)
    assert raised.value.status == 414
    assert len(parse(long, max_target_bytes=5_001).path) == 5_001


def test_a_head_is_read_as_it_stands() -> None:
    head = parse(
        b"PUT /a%20b?c=d HTTP/1.1\r\nHost: x\r\nX-A:  b c\t\r\nContent-Length: 007\r\n\r\n"
    )
    assert (head.method, head.path, head.query) == ("PUT", b"/a%20b", b"c=d")
    assert head.headers == [(b"host", b"x"), (b"x-a", b"b c"), (b"content-length", b"007")]
    assert head.framing == Framing(7, chunked=False)
    assert head.keep_alive
    assert not head.expects_continue


@pytest.mark.parametrize(
    ("head", "keep_alive"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Keep-Alive, CLOSE\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_the_wish_to_keep_the_connection_is_read(head: bytes, keep_alive: bool) -> None:
    assert parse(head).keep_alive is keep_alive


@given(st.binary(max_size=300))
def test_any_bytes_are_a_head_or_a_head_error(data: bytes) -> None:
    for text in (data, data + b"\r\n\r\n", b"GET / HTTP/1.1\r\n" + data + b"\r\n\r\n"):
        try:
            end = find_end(text)
            if end >= 0:
                parse(text[:end])
        except HeadError as error:
            assert error.status in (400, 414, 417, 431, 505)  # noqa: PT017


@given(st.integers(0, 60))
def test_the_end_is_found_whatever_has_arrived(cut: int) -> None:
    head = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    data = head + b"body\nbody"
    assert find_end(data[:cut]) == (len(head) if cut >= len(head) else -1)


def test_an_endless_head_is_refused_before_it_ends() -> None:
    with pytest.raises(HeadError) as caught:
        find_end(b"GET / HTTP/1.1\r\nX: " + b"a" * MAX_HEAD_BYTES)
    assert caught.value.status == 431


def test_a_bare_line_feed_is_refused_before_the_head_ends() -> None:
    with pytest.raises(HeadError):
        find_end(b"GET / HTTP/1.1\n")


@pytest.mark.parametrize("host", [b"a b", b"a/b", b"user@host", b"[::1", b"x:y"])
def test_a_malformed_host_is_refused(host: bytes) -> None:
    with pytest.raises(HeadError):
        read_framing([(b"host", host)], "1.1")


@pytest.mark.parametrize("host", [b"", b"a.example", b"a.example:80", b"[::1]:8000", b"127.0.0.1"])
def test_an_ordinary_host_is_accepted(host: bytes) -> None:
    assert read_framing([(b"host", host)], "1.1") == Framing(None, chunked=False)


# --- Chunks ---------------------------------------------------------------------------------


def encode(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces if p) + b"0\r\n\r\n"


@given(st.lists(st.binary(max_size=50), max_size=6), st.binary(max_size=9), st.data())
def test_any_split_of_a_chunked_body_is_the_whole(
    pieces: list[bytes], behind: bytes, data: st.DataObject
) -> None:
    text = encode(pieces) + behind
    decoder = ChunkedDecoder()
    body, rest = b"", b""
    while text:
        cut = data.draw(st.integers(1, len(text)))
        found, left = decoder.feed(text[:cut])
        assert all(found)
        body += b"".join(found)
        rest += left
        text = text[cut:]
    assert (body, rest, decoder.ended) == (b"".join(pieces), behind, True)


@pytest.mark.parametrize(
    "text",
    [
        b"5\r\nhelloXX",
        b"5\r\nhello\n",
        b"5\nhello\r\n",
        b"\r\n",
        b"-5\r\n",
        b"0x5\r\n",
        b"5 ; x\x00\r\n",
        b"1" * 16 + b"\r\n",
        b"5;" + b"a" * 300,
        b"0\r\nTrailer: x\r\n",
    ],
)
def test_a_malformed_chunk_is_refused(text: bytes) -> None:
    with pytest.raises(ChunkedError):
        ChunkedDecoder().feed(text)


def test_a_chunk_extension_is_passed_over() -> None:
    decoder = ChunkedDecoder()
    assert decoder.feed(b'5;a="b"\r\nhello\r\n0\r\n\r\n') == ([b"hello"], b"")
    assert decoder.ended
