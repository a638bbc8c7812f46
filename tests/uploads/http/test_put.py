"""The PUT of an upload session: what is answered, in which order, and what uses the attempt up."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import pytest
from tests.support.express import wait_until
from tests.support.raw_http import Answer, RawClient, exchange, request
from tests.support.upload_server import OWNER, Ticket, UploadServer

from agent_sandbox.errors import BY_CODE, UploadBusyError
from agent_sandbox.uploads.guidance import NEXT_STEP


def refused(answer: Answer, status: int, code: str) -> bool:
    """Say whether this is that refusal: fixed text, code twice, never stored, closed."""
    error = BY_CODE[code]
    assert answer.status == status == error.http_status, answer
    assert answer.json["error"] == error.text
    assert answer.json["error_category"] == error.category
    assert answer.json["code"] == code == answer.headers["agent-sandbox-error"]
    assert answer.json.get("next_step") == NEXT_STEP.get(code)
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["connection"] == "close"
    return True


@pytest.mark.parametrize("body", [b"", b"hello", b"\0\xff" * 700_001, b"\0\xffg" * 7_000_001])
def test_a_put_of_the_declared_bytes_is_stored(any_server: UploadServer, body: bytes) -> None:
    ticket = any_server.create(len(body), hashlib.sha256(body).hexdigest())
    answer = any_server.send(ticket.put(body))
    assert answer.status == 200
    assert answer.json == {
        "upload_id": ticket.upload_id,
        "state": "stored",
        "size_bytes": len(body),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    assert answer.headers["cache-control"] == "no-store"
    assert any_server.state(ticket) == "stored"


def test_a_body_with_another_digest_fails_the_session(any_server: UploadServer) -> None:
    ticket = any_server.create(5, hashlib.sha256(b"hello").hexdigest())
    answer = any_server.send(ticket.put(b"jello"))
    assert refused(answer, 400, "E7015")
    assert answer.json["state"] == "failed"
    assert any_server.state(ticket) == "failed"


def test_a_second_put_gets_409_and_replaces_nothing(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    first = any_server.send(ticket.put(b"hello"))
    second = any_server.send(ticket.put(b"jello"))
    assert first.status == 200
    assert refused(second, 409, "E7007")
    assert second.json["state"] == "stored"
    assert any_server.session(ticket.upload_id).received_sha256 == first.json["sha256"]


def test_a_revoked_session_gets_410(server: UploadServer) -> None:
    ticket = server.create(5)
    server.call(lambda: server.service.revoke(OWNER, ticket.upload_id))
    assert refused(server.send(ticket.put(b"hello")), 410, "E7005")


def test_a_session_that_is_revoked_under_its_body_says_so(server: UploadServer) -> None:
    ticket = server.create(5)
    with RawClient(server.port) as client:
        client.send(ticket.put(b"hel", length=5))
        wait_until(lambda: server.state(ticket) == "receiving")
        server.call(lambda: server.service.revoke(OWNER, ticket.upload_id))
        client.send(b"lo")
        answer = client.answer()
    assert refused(answer, 410, "E7005")
    assert answer.json["state"] == server.state(ticket) == "revoked"


def test_two_puts_at_the_same_instant_give_one_200_and_one_409(server: UploadServer) -> None:
    for _ in range(50):
        ticket = server.create(5)
        gate = threading.Barrier(2)
        statuses: list[int] = []

        def put(ticket: Ticket = ticket, gate: threading.Barrier = gate) -> None:
            with RawClient(server.port) as client:
                gate.wait(10)
                client.send_unless_refused(ticket.put(b"hello"))
                statuses.append(client.answer().status)  # noqa: B023  # joined before the next

        threads = [threading.Thread(target=put) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(statuses) == [200, 409]


# --- The secret -----------------------------------------------------------------------------

CANARY = "canary-5b1f0c77"


def _wrong_secrets() -> dict[str, tuple[list[str | bytes], set[int]]]:
    return {
        "missing": ([], {401}),
        "empty": (["Authorization:"], {401}),
        "blank": (["Authorization:   "], {401}),
        "wrong": ([f"Authorization: {CANARY}"], {404}),
        "not ASCII": ([b"Authorization: \xc3\xa9\xff" + CANARY.encode()], {404}),
        "of another scheme": ([f"Authorization: Bearer {CANARY}"], {404}),
        "in a cookie": ([f"Cookie: Authorization={CANARY}"], {401}),
        "in another header": ([f"X-Upload-Token: {CANARY}"], {401}),
    }


@pytest.mark.parametrize("case", _wrong_secrets())
def test_a_wrong_secret_is_refused_and_uses_nothing_up(any_server: UploadServer, case: str) -> None:
    lines, statuses = _wrong_secrets()[case]
    ticket = any_server.create(5)
    data = request("PUT", ticket.path, "Content-Length: 5", *lines, body=b"hello")
    answer = any_server.send(data)
    assert answer.status in statuses
    assert CANARY.encode() not in answer.body
    assert "state" not in answer.json
    assert any_server.send(ticket.put(b"hello")).status == 200


def test_a_secret_sent_twice_is_401(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    twice = ticket.put(b"hello", f"Authorization: {ticket.secret}")
    assert refused(any_server.send(twice), 401, "E7012")
    assert any_server.state(ticket) == "pending"


def test_a_secret_in_the_query_is_401(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    path = f"{ticket.path}?Authorization={ticket.secret}&token={ticket.secret}"
    answer = any_server.send(request("PUT", path, "Content-Length: 5", body=b"hello"))
    assert refused(answer, 401, "E7012")
    assert any_server.state(ticket) == "pending"


def test_a_secret_of_64_kib_is_an_ordinary_wrong_one(server: UploadServer) -> None:
    ticket = server.create(5)
    line = "Authorization: " + "s" * 65_536
    answer = server.send(request("PUT", ticket.path, line, "Content-Length: 5", body=b"hello"))
    assert refused(answer, 404, "E7002")
    assert server.state(ticket) == "pending"


def test_a_thousand_wrong_secrets_leave_the_session_pending(server: UploadServer) -> None:
    ticket = server.create(5)
    for n in range(1_000):
        wrong = request("PUT", ticket.path, f"Authorization: no-{n}", "Content-Length: 0")
        assert server.send(wrong).status == 404
    assert server.send(ticket.put(b"hello")).status == 200


def test_unknown_id_wrong_secret_and_wrong_endpoint_look_the_same(server: UploadServer) -> None:
    one, other = server.create(5), server.create(5)
    auth = f"Authorization: {one.secret}"
    answers = [
        exchange(server.port, request("PUT", path, auth, "Content-Length: 5", body=b"hello"))
        for path in (other.path, "/uploads/nothing-like-an-id", "/uploads/%00%ff", "/uploads/a/b")
    ]
    answers.append(server.send(request("GET", f"/downloads/{one.upload_id}", auth)))
    assert all(refused(answer, 404, "E7002") for answer in answers)
    assert len({answer.body for answer in answers}) == 1
    for answer in answers:
        answer.headers.pop("date")
    assert all(answer.headers == answers[0].headers for answer in answers)
    assert server.state(one) == server.state(other) == "pending"


# --- Method, encoding, length ---------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PATCH", "DELETE", "TRACE", "put", "PROPFIND"])
def test_another_method_is_405_before_the_secret_is_looked_at(
    server: UploadServer, method: str
) -> None:
    ticket = server.create(5)
    answer = server.send(request(method, ticket.path, "Content-Length: 0"))
    assert refused(answer, 405, "E7022")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, PUT"


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "x", "identity, gzip"])
def test_an_encoded_body_is_415_before_its_length_is_looked_at(
    any_server: UploadServer, coding: str
) -> None:
    ticket = any_server.create(5)
    answer = any_server.send(ticket.put(b"jumbled", f"Content-Encoding: {coding}"))
    assert refused(answer, 415, "E7023")
    assert answer.json["state"] == "pending"
    assert any_server.send(ticket.put(b"hello")).status == 200


def test_two_encoding_lines_are_415(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    lines = ("Content-Encoding: identity", "Content-Encoding: gzip")
    assert refused(any_server.send(ticket.put(b"hello", *lines)), 415, "E7023")


def test_a_body_called_identity_is_plain(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    assert any_server.send(ticket.put(b"hello", "Content-Encoding:  IDENTITY ")).status == 200


def test_no_length_is_411(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    bare = request("PUT", ticket.path, f"Authorization: {ticket.secret}")
    assert refused(any_server.send(bare), 411, "E7024")
    chunked = request(
        "PUT",
        ticket.path,
        f"Authorization: {ticket.secret}",
        "Transfer-Encoding: chunked",
        body=b"5\r\nhello\r\n0\r\n\r\n",
    )
    assert refused(any_server.send(chunked), 411, "E7024")
    assert any_server.send(ticket.put(b"hello")).status == 200


def test_a_length_over_the_cap_is_413_and_another_than_declared_400(
    any_server: UploadServer,
) -> None:
    ticket = any_server.create(5)
    over = any_server.send(ticket.put(b"", length=any_server.config.max_size_bytes + 1))
    assert refused(over, 413, "E7014")
    assert over.json["limit"] == any_server.config.max_size_bytes
    for length in (0, 4, 6):
        other = any_server.send(ticket.put(b"123456"[:length]))
        assert refused(other, 400, "E7025")
        assert other.json["state"] == "pending"
    assert any_server.send(ticket.put(b"hello")).status == 200


# --- Bodies that end badly ------------------------------------------------------------------


def test_a_body_cut_short_fails_the_session(any_server: UploadServer) -> None:
    ticket = any_server.create(1_000_000)
    with RawClient(any_server.port) as client:
        client.send(ticket.put(b"x" * 999_999, length=1_000_000))
        client.finish_sending()
        client.rest()
    assert any_server.settled(ticket) == "failed"


def test_our_server_still_tells_a_half_closed_client_why(server: UploadServer) -> None:
    ticket = server.create(10)
    with RawClient(server.port) as client:
        client.send(ticket.put(b"hello", length=10))
        client.finish_sending()
        assert refused(client.answer(), 400, "E7015")


def test_a_reset_in_the_body_fails_the_session(any_server: UploadServer) -> None:
    ticket = any_server.create(1_000_000)
    client = RawClient(any_server.port)
    client.send(ticket.put(b"x" * 500_000, "Expect: 100-continue", length=1_000_000))
    client.reset()
    assert any_server.settled(ticket) == "failed"


def test_bytes_behind_the_body_are_not_part_of_it(server: UploadServer) -> None:
    ticket = server.create(5)
    answer = server.send(ticket.put(b"hello") + b"and more")
    assert answer.json["sha256"] == hashlib.sha256(b"hello").hexdigest()


# --- Faults of our own ----------------------------------------------------------------------


@pytest.mark.parametrize("step", ["authorise", "claim", "receive"])
def test_a_fault_of_our_own_is_a_fixed_text(
    make_server: Callable[..., UploadServer],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
) -> None:
    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError(CANARY)

    server = make_server()
    ticket = server.create(5)
    monkeypatch.setattr(server.service, step, fails)
    answer = server.send(ticket.put(b"hello"))
    assert refused(answer, 500, "E7000")
    assert "state" not in answer.json or answer.json["state"] == "pending"
    assert CANARY not in caplog.text
    assert "RuntimeError" in caplog.text


def test_a_busy_database_is_503_and_says_when_to_come_back(
    make_server: Callable[..., UploadServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy(*_: object, **__: object) -> None:
        raise UploadBusyError

    server = make_server()
    ticket = server.create(5)
    monkeypatch.setattr(server.service, "authorise", busy)
    answer = server.send(ticket.put(b"hello"))
    assert refused(answer, 503, "E7019")
    assert answer.headers["retry-after"] == "1"


# --- 100-continue ---------------------------------------------------------------------------


def test_a_good_request_is_told_to_continue(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    with RawClient(any_server.port) as client:
        client.send(ticket.put(b"", "Expect: 100-continue", length=5))
        assert client.answer().status == 100
        client.send(b"hello")
        assert client.answer().status == 200


def test_a_refused_request_is_never_told_to_continue(any_server: UploadServer) -> None:
    ticket = any_server.create(5)
    lines = ("Authorization: wrong", "Content-Length: 5", "Expect: 100-continue")
    answer = any_server.send(request("PUT", ticket.path, *lines))
    assert refused(answer, 404, "E7002")


def test_the_answer_reaches_a_client_that_first_sends_everything(
    any_server: UploadServer,
) -> None:
    ticket = any_server.create(5)
    size = 16 * 1_048_576
    with RawClient(any_server.port) as client:
        lines = ("Authorization: wrong", f"Content-Length: {size}")
        client.send(request("PUT", ticket.path, *lines, body=b"x" * size))
        assert refused(client.answer(), 404, "E7002")
