"""Our protocol under ordinary applications: whoever mounts uploads keeps a whole HTTP server."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send
from tests.support.raw_http import RawClient, request
from tests.support.strict_http import serving

Start = Callable[[Any], int]


@pytest.fixture
def start() -> Iterator[Start]:
    with ExitStack() as stack:
        yield lambda app: stack.enter_context(serving(app))


async def read(receive: Receive) -> tuple[bytes, bool]:
    """Return the body and whether it ended as it should."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return body, False
        body += message["body"]
        if not message["more_body"]:
            return body, True


def start_message(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body_message(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    body, ended = await read(receive)
    await send(start_message((b"ended", str(ended).encode())))
    await send(body_message(scope["method"].encode() + b" " + scope["raw_path"] + b" " + body))


def test_a_chunked_request_is_decoded_and_the_connection_used_again(start: Start) -> None:
    with RawClient(start(echo)) as client:
        chunked = request("POST", "/a", "Transfer-Encoding: chunked", body=b"3\r\nabc\r\n0\r\n\r\n")
        client.send(chunked + request("POST", "/b", "Content-Length: 2", body=b"de") * 2)
        bodies = [client.answer().body for _ in range(3)]
    assert bodies == [b"POST /a abc", b"POST /b de", b"POST /b de"]


def test_a_malformed_chunk_is_a_disconnect_and_never_an_end(start: Start) -> None:
    with RawClient(start(echo)) as client:
        bad = request("POST", "/a", "Transfer-Encoding: chunked", body=b"3\r\nabcXX0\r\n\r\n")
        client.send(bad)
        answer = client.answer()
        assert answer.headers["ended"] == "False"
        assert answer.headers["connection"] == "close"


def test_an_early_end_is_a_disconnect_and_never_an_end(start: Start) -> None:
    with RawClient(start(echo)) as client:
        client.send(request("POST", "/a", "Content-Length: 9", body=b"abc"))
        client.finish_sending()
        assert client.answer().headers["ended"] == "False"


def test_a_large_body_arrives_whole_through_the_flow_control(start: Start) -> None:
    body = bytes(range(256)) * 40_000
    with RawClient(start(echo)) as client:
        client.send(request("POST", "/a", f"Content-Length: {len(body)}", body=body))
        assert client.answer().body == b"POST /a " + body


def test_a_stream_goes_out_as_it_is_made(start: Start) -> None:
    go = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message())
        await send(body_message(b"one", more=True))
        await asyncio.to_thread(go.wait, 10)
        await send(body_message(b"two"))

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        client._until(b"one\r\n")
        go.set()
        client._until(b"two\r\n0\r\n\r\n")
        client.send(request("GET", "/"))
        assert client.answer().body == b"onetwo"


def test_the_head_does_not_wait_for_a_body_that_is_long_in_coming(start: Start) -> None:
    async def app(_: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        await send(start_message((b"kind", b"stream")))
        while (await receive())["type"] != "http.disconnect":
            pass

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        assert client.answer(to_head=True).headers["kind"] == "stream"


def test_http_1_0_gets_an_answer_that_ends_with_the_connection(start: Start) -> None:
    with RawClient(start(echo)) as client:
        client.send(b"GET /a HTTP/1.0\r\n\r\n")
        answer = client.answer()
    assert answer.body == b"GET /a "
    assert "transfer-encoding" not in answer.headers


def test_a_failing_application_gives_500_without_its_text_in_answer_or_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("canary")

    with caplog.at_level(logging.DEBUG), RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        answer = client.answer()
    assert answer.status == 500
    assert answer.json == {"error": "Internal Server Error", "code": "E1000"}
    assert answer.headers["agent-sandbox-error"] == "E1000"
    assert "canary" not in caplog.text
    assert "RuntimeError" in caplog.text


def test_a_failing_application_gives_no_body_to_head(start: Start) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError

    with RawClient(start(app)) as client:
        client.send(request("HEAD", "/"))
        assert client.answer(to_head=True).status == 500
        assert client.rest() == b""


def test_a_started_answer_that_fails_is_never_taken_for_whole(start: Start) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message())
        await send(body_message(b"part", more=True))
        raise RuntimeError

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        assert b"0\r\n\r\n" not in client.rest()


def test_an_answer_that_only_a_close_would_end_is_reset_where_it_fails(start: Start) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message())
        await send(body_message(b"half", more=True))
        raise RuntimeError

    with RawClient(start(app)) as client:
        client.send(b"GET / HTTP/1.0\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            list(iter(lambda: client.sock.recv(65_536), b""))


def test_who_has_finished_sending_is_not_kept_waiting_for_the_close() -> None:
    with serving(echo, timeout_keep_alive=600) as port, RawClient(port) as client:
        client.send(request("GET", "/"))
        client.finish_sending()
        assert client.answer().status == 200
        assert client.sock.recv(1) == b""


def test_requests_that_were_whole_before_their_senders_end_are_all_answered() -> None:
    ended = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body, _ = await read(receive)
        await asyncio.to_thread(ended.wait, 15)
        await send(start_message((b"content-length", str(len(body)).encode())))
        await send(body_message(body))

    with serving(app, timeout_keep_alive=600) as port, RawClient(port) as client:
        for body in (b"first", b"second", b""):
            client.send(request("PUT", "/", f"Content-Length: {len(body)}", body=body))
        client.send(b"GET /half HTTP/1.1\r\n")
        client.finish_sending()
        ended.set()
        for body in (b"first", b"second", b""):
            answer = client.answer()
            assert (answer.status, answer.body) == (200, body)
        assert client.sock.recv(1) == b""


@pytest.mark.parametrize("body", [b"abc", b"abcdef"])
def test_a_body_that_is_not_its_content_length_is_never_taken_for_whole(
    start: Start, body: bytes
) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message((b"content-length", b"5")))
        await send(body_message(body))

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        assert len(client.rest().partition(b"\r\n\r\n")[2]) != 5


def test_a_response_header_with_a_line_break_is_refused(start: Start) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message((b"x", b"a\r\nset-cookie: b")))

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        assert client.answer().status == 500


def test_a_reset_that_nobody_has_heard_of_is_no_fault_of_the_application(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answered, reset = threading.Event(), threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message())
        await send(body_message(b"half", more=True))
        answered.set()
        reset.wait(10)  # in the loop, which so learns nothing of the connection
        await send(body_message(b""))

    with serving(app) as port, RawClient(port) as client:
        # HTTP/1.0: the end of this answer is the end of the connection, and no byte of its own.
        client.send(b"PUT / HTTP/1.0\r\nContent-Length: 9\r\n\r\nabc")
        assert answered.wait(10)
        client.reset()
        reset.set()
    assert not [one for one in caplog.records if one.name.startswith("agent_sandbox")]


def test_the_application_hears_that_the_client_left(start: Start) -> None:
    left = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await read(receive)
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
    assert left.wait(10)


def test_a_client_that_does_not_read_holds_the_application_back(start: Start) -> None:
    sent: list[int] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message())
        for _ in range(400):
            await send(body_message(b"x" * 262_144, more=True))
            sent.append(262_144)

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        client._until(b"\r\n\r\n")
        before = -1
        while before != sum(sent):  # until a whole second brings nothing more
            before = sum(sent)
            threading.Event().wait(1.0)
        assert before < 40_000_000


@pytest.mark.parametrize("head", [f"Content-Length: {64 << 20}", "X-Body: none"])
def test_an_application_that_is_busy_holds_the_client_back(start: Start, head: str) -> None:
    go = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.to_thread(go.wait, 60)
        await echo(scope, receive, send)

    body = bytes(64 << 20)
    with RawClient(start(app)) as client:
        client.send(request("PUT", "/", head))
        client.sock.settimeout(3.0)  # the kernel holds some MiB; then nothing more is taken
        try:
            with pytest.raises(TimeoutError):
                client.send(body)
        finally:
            go.set()


def test_a_slow_reader_gets_the_whole_of_a_closing_answer(start: Start) -> None:
    size = 30_000_000

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(start_message((b"content-length", b"%d" % size), (b"connection", b"close")))
        await send(body_message(b"x" * size))

    with RawClient(start(app)) as client:
        client.send(request("GET", "/"))
        threading.Event().wait(3.0)  # longer than the linger of a refusal
        assert len(client.answer().body) == size


def test_the_server_stops_while_connections_are_idle_or_lingering(start: Start) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(serving(echo))
        clients = [stack.enter_context(RawClient(port)) for _ in range(3)]
        clients[0].send(request("GET", "/a"))
        assert clients[0].answer().status == 200
        clients[1].send(b"nonsense\r\n\r\n")
        assert clients[1].answer().status == 400


def test_more_requests_than_configured_are_told_to_come_back() -> None:
    go = asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    arrived = threading.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        loops.append(asyncio.get_running_loop())
        arrived.set()
        await go.wait()
        await echo(scope, receive, send)

    with serving(app, limit_concurrency=1) as port, RawClient(port) as one, RawClient(port) as two:
        one.send(request("GET", "/one"))
        assert arrived.wait(10)
        two.send(request("GET", "/two"))
        refused = two.answer()
        assert (refused.status, refused.headers["agent-sandbox-error"]) == (503, "E7019")
        loops[0].call_soon_threadsafe(go.set)
        assert one.answer().body == b"GET /one "
