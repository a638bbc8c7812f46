"""Bodies that the server puts where the application wants them."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import trustme
from starlette.types import Receive, Scope, Send
from tests.support.raw_http import RawClient, request
from tests.support.strict_http import serving

from agent_sandbox.http1.fill import FILL

MIB = 1 << 20


class Filling:
    """An application that fills one buffer after the other and answers with what it got.

    Attributes:
        told: Of each buffer the bytes in it, and how the wait for them ended.
    """

    def __init__(self, *sizes: int, idle_s: float = 15, total_s: float = 30) -> None:
        self._sizes = sizes
        self._idle_s = idle_s
        self._total_s = total_s
        self.told: list[tuple[bytes, str]] = []
        self.turns: queue.SimpleQueue[None] = queue.SimpleQueue()  # one for each buffer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "PUT":
            filler = scope["extensions"][FILL]["filler"]
            end = asyncio.get_running_loop().time() + self._total_s
            for size in self._sizes:
                buffer = bytearray(size)
                how = "ended"
                try:
                    count = await filler.fill(memoryview(buffer), idle_s=self._idle_s, end=end)
                    assert count == filler.filled
                except TimeoutError:
                    how = "late"
                self.told.append((bytes(buffer[: filler.filled]), how))
                self.turns.put(None)
        body = b" ".join(b"%d" % len(data) for data, _ in self.told)
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})

    @property
    def body(self) -> bytes:
        return b"".join(data for data, _ in self.told)


def put(body: bytes, *lines: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return request("PUT", "/", f"Content-Length: {size}", *lines, body=body)


@pytest.mark.parametrize("sizes", [(7,), (1, 2, 3, 1), (3, 9), (100,)])
def test_a_body_that_came_with_its_head_is_filled_in_order(sizes: tuple[int, ...]) -> None:
    app = Filling(*sizes)
    with serving(app) as port, RawClient(port) as client:
        client.send(put(b"seven b"))
        assert client.answer().status == 200
    assert app.body == b"seven b"


def test_a_large_body_is_filled_whole_and_the_connection_serves_the_next_request() -> None:
    body = os.urandom(10 * MIB + 1)
    app = Filling(4 * MIB, 4 * MIB, 4 * MIB)
    with serving(app) as port, RawClient(port) as client:
        client.send(put(body) + request("GET", "/"))  # the next one waits in the same stream
        first, second = client.answer(), client.answer()
    assert first.body == second.body == b"4194304 4194304 2097153"
    assert app.body == body
    assert {how for _, how in app.told} == {"ended"}


def test_over_tls_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    paths = {"ssl_certfile": tmp_path / "cert", "ssl_keyfile": tmp_path / "key"}
    certificate.cert_chain_pems[0].write_to_path(paths["ssl_certfile"])
    certificate.private_key_pem.write_to_path(paths["ssl_keyfile"])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    body = os.urandom(3 * MIB + 5)
    app = Filling(MIB, MIB, MIB, MIB)
    with serving(app, **paths) as port:
        plain = socket.create_connection(("127.0.0.1", port), timeout=15)
        with context.wrap_socket(plain, server_hostname="localhost") as client:
            client.sendall(put(body) + request("GET", "/"))
            answers = b""
            while answers.count(b"\r\n\r\n1048576 1048576 1048576 5") < 2:
                data = client.recv(65_536)
                assert data
                answers += data
            client.sendall(put(b"", length=1))  # and goes away before the body
            app.turns.get(timeout=15)
    assert app.body.startswith(body)
    assert not caplog.records


def test_whoever_waits_to_be_asked_is_asked() -> None:
    app = Filling(5)
    with serving(app) as port, RawClient(port) as client:
        client.send(put(b"", "Expect: 100-continue", length=5))
        assert client.answer().status == 100
        client.send(b"hello")
        assert client.answer().status == 200
    assert app.body == b"hello"


@pytest.mark.parametrize("reset", [False, True])
def test_a_body_that_breaks_off_is_told_by_its_count(reset: bool) -> None:
    app = Filling(MIB, MIB)
    with serving(app) as port, RawClient(port) as client:
        client.send(put(b"x" * (MIB + 9), length=2 * MIB))
        app.turns.get(timeout=15)
        if reset:
            client.reset()
        else:
            client.finish_sending()
            assert client.answer().body == b"1048576 9"
        app.turns.get(timeout=15)
    assert app.told[0] == (b"x" * MIB, "ended")
    last, how = app.told[1]
    assert how == "ended"
    assert (last.ljust(9, b"x") if reset else last) == b"x" * 9  # a reset takes what lies unread


def test_a_silent_peer_is_late_after_the_idle_time_and_what_it_sent_is_counted() -> None:
    app = Filling(100, idle_s=0.3)
    with serving(app) as port, RawClient(port) as client:
        client.send(put(b"hello", length=100))
        assert client.answer().body == b"5"
        assert 0.3 <= time.monotonic() - client.opened < 10
    assert app.told == [(b"hello", "late")]


def test_a_dripping_peer_is_late_at_the_end_however_often_it_sends() -> None:
    app = Filling(1_000, idle_s=5, total_s=1)
    with serving(app) as port, RawClient(port) as client:
        client.send(put(b"", length=1_000))
        client.sock.settimeout(0.05)
        answer = b""
        while not answer:
            client.send(b"x")
            try:
                answer = client.sock.recv(65_536)
            except TimeoutError:
                continue
        assert 1 <= time.monotonic() - client.opened < 10
    assert [how for _, how in app.told] == ["late"]
    assert 1 <= len(app.body) < 1_000


def test_between_two_buffers_the_peer_is_held_back() -> None:
    go = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        end = asyncio.get_running_loop().time() + 30
        filler = scope["extensions"][FILL]["filler"]
        await filler.fill(memoryview(bytearray(10)), idle_s=15, end=end)
        await asyncio.to_thread(go.wait, 30)

    with serving(app) as port, RawClient(port) as client:
        client.sock.settimeout(2.0)  # the kernel holds some MiB; then nothing more is taken
        try:
            with pytest.raises(TimeoutError):
                client.send(put(bytes(64 * MIB)))
        finally:
            go.set()
            client.reset()


@pytest.mark.parametrize(
    "lines", [("Content-Length: 0",), ("Transfer-Encoding: chunked",), ()], ids=str
)
def test_where_no_length_is_declared_nothing_is_offered(lines: tuple[str, ...]) -> None:
    offered: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        offered.append(FILL in scope["extensions"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with serving(app) as port, RawClient(port) as client:
        client.send(
            request("PUT", "/", *lines, body=b"0\r\n\r\n" if "chunked" in str(lines) else b"")
        )
        assert client.answer().status == 204
    assert offered == [False]
