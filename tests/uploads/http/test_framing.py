"""Requests whose framing is in doubt: refused by our protocol, never committed under any."""

from __future__ import annotations

import pytest
from tests.support.raw_http import RawClient, request
from tests.support.upload_server import Ticket, UploadServer

CHUNKED = b"5\r\nhello\r\n0\r\n\r\n"
H2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def raw(ticket: Ticket, *lines: str | bytes, body: bytes = b"hello") -> bytes:
    """A PUT with the right secret and nothing but the given lines about its body."""
    return request("PUT", ticket.path, f"Authorization: {ticket.secret}", *lines, body=body)


def rows() -> dict[str, tuple[int, list[str | bytes], bytes]]:
    """Name -> the status of our protocol, the header lines, the body."""
    length = "Content-Length: 5"
    chunked = "Transfer-Encoding: chunked"
    return {
        "differing lengths": (400, [length, "Content-Length: 6"], b"hello!"),
        "equal lengths": (400, [length, length], b"hello"),
        "a list of lengths": (400, ["Content-Length: 5, 5"], b"hello"),
        "length and chunked": (400, [length, chunked], CHUNKED),
        "chunked and length": (400, [chunked, length], CHUNKED),
        "length 2^64": (400, [f"Content-Length: {2**64}"], b"hello"),
        "length 2^64 + 5": (400, [f"Content-Length: {2**64 + 5}"], b"hello"),
        "length 2^63": (400, [f"Content-Length: {2**63}"], b"hello"),
        "length +5": (400, ["Content-Length: +5"], b"hello"),
        "length -5": (400, ["Content-Length: -5"], b"hello"),
        "length 0x5": (400, ["Content-Length: 0x5"], b"hello"),
        "length 5.0": (400, ["Content-Length: 5.0"], b"hello"),
        "length 1_0": (400, ["Content-Length: 1_0"], b"hello"),
        "length empty": (400, ["Content-Length:"], b"hello"),
        "length in Arabic digits": (400, ["Content-Length: \u0665".encode()], b"hello"),
        "gzip, chunked": (400, ["Transfer-Encoding: gzip, chunked"], CHUNKED),
        "chunked twice": (400, [chunked, chunked], CHUNKED),
        "chunked, chunked": (400, ["Transfer-Encoding: chunked, chunked"], CHUNKED),
        "Transfer-Encoding xchunked": (400, ["Transfer-Encoding: xchunked"], CHUNKED),
        "Transfer-Encoding identity": (400, ["Transfer-Encoding: identity", length], b"hello"),
        "space before the colon": (400, ["Transfer-Encoding : chunked", length], CHUNKED),
        "a folded header": (400, ["X-A: b\r\n c", length], b"hello"),
        "a folded first header": (400, [" folded: x", length], b"hello"),
        "a NUL in a value": (400, [length, "X-A: b\0c"], b"hello"),
        "a bare CR in a value": (400, [length, "X-A: b\rContent-Length: 6"], b"hello"),
        "a bare LF": (400, [length, "X-A: b\nX-B: c"], b"hello"),
        "a header without a colon": (400, [length, "nonsense"], b"hello"),
        "a header without a name": (400, [length, ": value"], b"hello"),
        "two hosts": (400, [length, "Host: other.test"], b"hello"),
        "Content-Range": (400, [length, "Content-Range: bytes 0-4/10"], b"hello"),
        "Upgrade: h2c": (
            400,
            [length, "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AA"],
            b"hello",
        ),
        "Upgrade: websocket": (
            400,
            [length, "Connection: Upgrade", "Upgrade: websocket"],
            b"hello",
        ),
        "chunked alone": (411, [chunked], CHUNKED),
        "a bad chunk terminator": (411, [chunked], b"5\r\nhelloXX0\r\n\r\n"),
        "another expectation": (417, [length, "Expect: 200-ok"], b"hello"),
        "70 KB of header": (431, [length, "X-A: " + "a" * 70_000], b"hello"),
        "5,000 headers": (431, [length, *(f"X-{n}: b" for n in range(5_000))], b"hello"),
        "101 headers": (431, [length, *(f"X-{n}: b" for n in range(99))], b"hello"),
    }


@pytest.mark.parametrize("row", rows())
def test_doubtful_framing_is_refused_and_uses_nothing_up(server: UploadServer, row: str) -> None:
    status, lines, body = rows()[row]
    ticket = server.create(5)
    with RawClient(server.port) as client:
        client.send_unless_refused(raw(ticket, *lines, body=body))
        answer = client.answer()
        assert answer.status == status
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["connection"] == "close"
        client.finish_sending()
        assert client.rest() == b""
    assert server.state(ticket) == "pending"
    assert server.send(ticket.put(b"hello")).status == 200


REPAIRED = {
    "equal lengths",
    "a list of lengths",
    "another expectation",
    "a folded header",
    "a bare LF",
}
"""What uvicorn's parsers read as the one request that it can mean: five bytes, `hello`."""


@pytest.mark.parametrize("row", sorted(set(rows()) - REPAIRED))
def test_doubtful_framing_is_committed_under_no_parser(any_server: UploadServer, row: str) -> None:
    _, lines, body = rows()[row]
    ticket = any_server.create(5)
    with RawClient(any_server.port) as client:
        client.send_unless_refused(raw(ticket, *lines, body=body))
        client.finish_sending()
        assert not client.rest().startswith((b"HTTP/1.1 2", b"HTTP/1.1 500"))
    assert any_server.state(ticket) != "stored"


@pytest.mark.parametrize(
    ("status", "line"),
    [
        (400, "PUT {path}"),
        (400, "PUT  {path} HTTP/1.1"),
        (400, "PUT\t{path} HTTP/1.1"),
        (400, " PUT {path} HTTP/1.1"),
        (400, "PUT {path} HTTP/1.1 "),
        (400, "PUT {path} http/1.1"),
        (400, "PUT {path} HTTP/1.10"),
        (400, "PUT {path}#x HTTP/1.1"),
        (400, "PUT uploads HTTP/1.1"),
        (400, "P(T {path} HTTP/1.1"),
        (400, "PUT /\x00 HTTP/1.1"),
        (400, "PUT /é HTTP/1.1"),
        (414, "PUT /{long} HTTP/1.1"),
        (505, "PUT {path} HTTP/2.0"),
        (505, "PUT {path} HTTP/0.9"),
    ],
)
def test_a_malformed_request_line_is_refused(server: UploadServer, status: int, line: str) -> None:
    ticket = server.create(5)
    first = line.format(path=ticket.path, long="a" * 5_000)
    head = f"{first}\r\nHost: a\r\nAuthorization: {ticket.secret}\r\nContent-Length: 5\r\n\r\n"
    assert server.send(head.encode() + b"hello").status == status
    assert server.state(ticket) == "pending"


def test_the_preface_of_http2_is_refused(server: UploadServer) -> None:
    assert server.send(H2_PREFACE).status == 505


def test_a_request_without_host_is_refused(server: UploadServer) -> None:
    ticket = server.create(5)
    head = f"PUT {ticket.path} HTTP/1.1\r\nAuthorization: {ticket.secret}\r\n"
    assert server.send(head.encode() + b"Content-Length: 5\r\n\r\nhello").status == 400


def test_http_1_0_with_a_length_is_served_and_closed(server: UploadServer) -> None:
    ticket = server.create(5)
    head = f"PUT {ticket.path} HTTP/1.0\r\nAuthorization: {ticket.secret}\r\n"
    answer = server.send(head.encode() + b"Content-Length: 5\r\n\r\nhello")
    assert answer.status == 200
    assert answer.headers["connection"] == "close"


def test_an_absolute_target_is_its_path(server: UploadServer) -> None:
    ticket = server.create(5)
    lines = (f"Authorization: {ticket.secret}", "Content-Length: 5")
    data = request("PUT", f"http://files.test{ticket.path}", *lines, body=b"hello")
    assert server.send(data).status == 200


@pytest.mark.parametrize("cut", [1, 3, 17, 40, 120])
def test_a_request_in_pieces_is_the_same_request(server: UploadServer, cut: int) -> None:
    ticket = server.create(5)
    data = ticket.put(b"hello")
    with RawClient(server.port) as client:
        for at in range(0, len(data), cut):
            client.send(data[at : at + cut])
        assert client.answer().status == 200
