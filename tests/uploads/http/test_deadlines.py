"""Silent, dripping and stalling clients: all cut at their deadline, on the monotonic clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.support.raw_http import RawClient, request
from tests.support.upload_server import PARSERS, UploadServer

HEADER_S, IDLE_S, BODY_S = 0.5, 0.4, 1.2
SLACK_S = 8.0  # on a machine that has much else to do


@pytest.fixture
def short(make_server: Callable[..., UploadServer]) -> UploadServer:
    """Deadlines that a test can wait for."""
    return make_server(header_deadline_s=HEADER_S, idle_deadline_s=IDLE_S, body_deadline_s=BODY_S)


@contextmanager
def dripping(client: RawClient, data: bytes, every_s: float) -> Iterator[None]:
    """Send one byte after the other from a thread, until the block ends or the server cuts."""
    stop = threading.Event()

    def drip() -> None:
        for byte in data:
            try:
                client.send(bytes([byte]))
            except OSError:
                return
            if stop.wait(every_s):
                return

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(10)


def test_a_silent_connection_is_closed_at_the_head_s_deadline(short: UploadServer) -> None:
    with RawClient(short.port) as client:
        assert HEADER_S <= client.ends() < HEADER_S + SLACK_S


def test_a_dripping_head_is_cut_at_its_deadline(short: UploadServer) -> None:
    head = request("GET", "/uploads/x", "X-A: " + "a" * 999)
    with RawClient(short.port) as client, dripping(client, head, 0.05):
        assert client.answer().status == 408
        assert HEADER_S <= time.monotonic() - client.opened < HEADER_S + SLACK_S


def test_a_second_request_has_a_deadline_of_its_own(short: UploadServer) -> None:
    with RawClient(short.port) as client:
        client.send(request("GET", "/llms.txt"))
        assert client.answer().status == 200
        client.send(b"GET /uploads")
        assert client.answer().status == 408


def test_a_second_request_that_began_before_the_first_answer_has_one_too(
    short: UploadServer,
) -> None:
    with RawClient(short.port) as client:
        client.send(request("GET", "/llms.txt") + b"GET /uploads")
        assert client.answer().status == 200
        assert client.answer().status == 408


@pytest.mark.parametrize("size", [10, 20_000_000])  # of a large one the server fills slabs
def test_a_stalled_body_is_cut_after_the_idle_time(
    make_server: Callable[..., UploadServer], size: int
) -> None:
    short = make_server(idle_deadline_s=IDLE_S)  # and a minute for the whole
    ticket = short.create(size)
    with RawClient(short.port) as client:
        client.send(ticket.put(b"hello", length=size))
        answer = client.answer()
        assert (answer.status, answer.json["code"]) == (408, "E7016")
        assert answer.json["state"] == "failed"
        assert IDLE_S <= time.monotonic() - client.opened < IDLE_S + SLACK_S
    assert short.settled(ticket) == "failed"


@pytest.mark.parametrize("size", [1_000, 20_000_000])
@pytest.mark.parametrize("parser", PARSERS)
def test_a_dripping_body_is_cut_at_the_total_under_every_parser(
    make_server: Callable[..., UploadServer], parser: str, size: int
) -> None:
    server = make_server(parser, idle_deadline_s=IDLE_S, body_deadline_s=BODY_S)
    ticket = server.create(size)
    with RawClient(server.port) as client:
        client.send(ticket.put(b"", length=size))
        with dripping(client, b"x" * 1_000, 0.05):
            assert client.answer().status == 408
            assert BODY_S <= time.monotonic() - client.opened < BODY_S + SLACK_S
    assert server.settled(ticket) == "failed"


@pytest.mark.parametrize("hours", [-2, 2])
def test_a_step_of_the_host_s_clock_moves_no_deadline(
    short: UploadServer, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    real, real_ns = time.time, time.time_ns
    ticket = short.create(1_000)
    with RawClient(short.port) as client:
        client.send(ticket.put(b"", "Expect: 100-continue", length=1_000))
        assert client.answer().status == 100  # the attempt has begun
        with dripping(client, b"x" * 1_000, 0.05):
            monkeypatch.setattr(time, "time", lambda: real() + hours * 3_600)
            monkeypatch.setattr(time, "time_ns", lambda: real_ns() + hours * 3_600 * 10**9)
            assert client.answer().status == 408
            assert BODY_S <= time.monotonic() - client.opened < BODY_S + SLACK_S
    assert short.settled(ticket) == "failed"


def test_the_time_grows_with_the_declared_size_where_configured(
    make_server: Callable[..., UploadServer],
) -> None:
    server = make_server(body_deadline_s=0.3, body_extra_s_per_mib=1.0, idle_deadline_s=30.0)
    ticket = server.create(1_048_576)
    with RawClient(server.port) as client:
        client.send(ticket.put(b"x" * 1_000, length=1_048_576))
        assert client.answer().status == 408
        assert 1.3 <= time.monotonic() - client.opened < 1.3 + SLACK_S


def test_a_client_that_ignores_its_refusal_is_cut_after_a_bounded_linger(
    short: UploadServer,
) -> None:
    ticket = short.create(5)
    with RawClient(short.port) as client:
        client.send(request("PUT", ticket.path, "Content-Length: 9999999"))
        assert client.answer().status == 401
        began = time.monotonic()
        while time.monotonic() - began < 15:
            try:
                client.send(b"x" * 1_000)
            except OSError:
                break
            time.sleep(0.05)
        assert time.monotonic() - began < 2.0 + SLACK_S


def test_an_idle_connection_is_closed_after_its_answer(short: UploadServer) -> None:
    with RawClient(short.port) as client:
        client.send(request("GET", "/llms.txt"))
        assert client.answer().status == 200
        assert client.ends() < 5.0 + SLACK_S
