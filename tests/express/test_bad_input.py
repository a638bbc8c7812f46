"""Bytes that no good client sends, on raw sockets: a fixed answer, and the service lives on."""

from __future__ import annotations

import json
import socket

import psutil
import pytest
from tests.support.express import Box, Service, raw_socket, settled, wait_until


def head(box: Box, line: str, *more: str) -> bytes:
    lines = [f"{line} HTTP/1.1", "host: localhost", *more]
    lines += [f"{name}: {value}" for name, value in box.headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def read_answer(peer: socket.socket) -> tuple[int, bytes]:
    received = b""
    while b"\r\n\r\n" not in received:
        chunk = peer.recv(65_536)
        assert chunk, received
        received += chunk
    top, _, body = received.partition(b"\r\n\r\n")
    lines = dict(line.split(b": ", 1) for line in top.split(b"\r\n")[1:])
    while len(body) < int(lines.get(b"content-length", b"0")):
        body += peer.recv(65_536)
    return int(top.split()[1]), body


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\0\0\0\0\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"POST /files HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /files HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
        b"POST /files HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\n",
        b"GET /health HTTP/1.1\nhost: x\n\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na: b\r\n folded\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\na : b\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
        b"POST /files HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
    ],
)
def test_what_is_no_http_is_400_and_closed(express: Service, request_bytes: bytes) -> None:
    with raw_socket(express) as peer:
        peer.sendall(request_bytes)
        status, body = read_answer(peer)
        assert (status, json.loads(body)["code"]) == (400, 400)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65_536):
            pass
    assert express.http.get("/health").status_code == 204


@pytest.mark.parametrize("sent", [b"", b"part", b"x" * 2_000_000])
def test_an_upload_that_breaks_off_changes_nothing(express: Service, box: Box, sent: bytes) -> None:
    box.put("/tmp/a", b"old")
    root = express.root_of(box)
    inode = (root / "tmp/a").stat().st_ino
    with raw_socket(express) as peer:
        peer.sendall(head(box, "POST /files?path=/tmp/a", "content-length: 3000000") + sent)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65_536):
            pass
    assert box.get("/tmp/a").content == b"old"
    assert (root / "tmp/a").stat().st_ino == inode
    # The connection ends before its leftovers are taken away.
    wait_until(lambda: not list(root.rglob(".~agent-sandbox.*")))


def test_a_broken_chunk_changes_nothing(express: Service, box: Box) -> None:
    box.put("/tmp/a", b"old")
    with raw_socket(express) as peer:
        lines = head(box, "POST /files?path=/tmp/a", "transfer-encoding: chunked")
        peer.sendall(lines + b"3\r\nnew\r\nXX\r\n")
        while peer.recv(65_536):
            pass
    assert box.get("/tmp/a").content == b"old"


def test_who_sends_a_refused_upload_hears_the_answer_and_goes_on_elsewhere(
    express: Service, box: Box
) -> None:
    with raw_socket(express) as peer:
        body = b"x" * 3_000_000
        peer.sendall(head(box, "POST /files?path=/../a", f"content-length: {len(body)}") + body)
        assert read_answer(peer)[0] == 400
        assert peer.recv(1) == b"", "what is left of a body is never taken for a request"
    with raw_socket(express) as peer:
        peer.sendall(head(box, "POST /files?path=/a", "content-length: 2") + b"ok")
        assert read_answer(peer)[0] == 200
        peer.sendall(head(box, "GET /files?path=/a"))
        assert read_answer(peer) == (200, b"ok"), "a body that was read leaves it usable"


def test_a_refusal_comes_before_the_body_is_asked_for(express: Service, box: Box) -> None:
    with raw_socket(express) as peer:
        lines = head(box, "POST /files?path=/../a", "content-length: 5", "expect: 100-continue")
        peer.sendall(lines)
        assert read_answer(peer)[0] == 400


def test_requests_in_one_write_are_answered_in_order(express: Service, box: Box) -> None:
    box.put("/1", b"one")
    box.put("/2", b"two")
    with raw_socket(express) as peer:
        peer.sendall(head(box, "GET /files?path=/1") + head(box, "GET /files?path=/2"))
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 2 or not answers.endswith(b"two"):
            answers += peer.recv(65_536)
        assert answers.index(b"one") < answers.index(b"two")


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b'{"timeout":', b"x" * 70_000])
@pytest.mark.parametrize(
    "url", ["/v2/sandboxes", "/v2/sandboxes/ID/connect", "/sandboxes/ID/timeout"]
)
def test_a_malformed_body_is_refused(express: Service, box: Box, url: str, body: bytes) -> None:
    answer = express.http.post(url.replace("ID", box.sandbox_id), content=body)
    assert answer.status_code == (413 if len(body) > 65_536 else 400)
    assert answer.json()["code"] == answer.status_code
    assert answer.headers["agent-sandbox-error"] in ("E2001", "E3001")


@pytest.mark.parametrize(
    ("method", "url", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/files/", 404),
        ("GET", "/v3/sandboxes", 404),
        ("PUT", "/files?path=/a", 405),
        ("GET", "/filesystem.Filesystem/Stat", 405),
        ("PATCH", "/sandboxes/x", 405),
        ("BREW", "/files", 405),
    ],
)
def test_a_wrong_route_or_method_has_a_fixed_answer(
    express: Service, method: str, url: str, status: int
) -> None:
    answer = express.http.request(method, url)
    assert answer.status_code == status
    assert answer.json()["code"] == status


def test_a_reader_that_leaves_costs_nothing(express: Service, box: Box) -> None:
    box.put("/big", bytes(20_000_000))
    for _ in range(10):
        with raw_socket(express) as peer:
            peer.sendall(head(box, "GET /files?path=/big"))
            assert peer.recv(1_000)
    assert box.get("/etc/group").status_code == 200
    assert box.kill().status_code == 204


def test_a_reader_that_stops_gets_no_more_than_buffers_hold_and_then_the_rest(
    express: Service, box: Box
) -> None:
    size = 256 * 2**20
    with (express.root_of(box) / "sparse").open("wb") as file:
        file.truncate(size)
    process = psutil.Process(express.process.pid)
    before = settled(lambda: process.memory_info().rss // 2**20)
    with raw_socket(express) as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        peer.sendall(head(box, "GET /files?path=/sparse"))
        received = len(peer.recv(1_000))
        assert received
        assert box.get("/etc/group").status_code == 200, "others are served meanwhile"
        assert settled(lambda: process.memory_info().rss // 2**20) < before + 32
        while received < size:
            chunk = len(peer.recv(1 << 20))
            assert chunk, "cut"
            received += chunk
