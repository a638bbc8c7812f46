"""What a status means, and what is never taken from an answer (R21-R27 of the test matrix)."""

from __future__ import annotations

import pytest
from tests.client.conftest import CANARY, Connect, connected, refused, sends
from tests.support.bad_peer import BadPeer, Talk, answer

from agent_sandbox.models import (
    AuthenticationError,
    FileConflictError,
    FileKindError,
    FileMissingError,
    FilePermissionError,
    SandboxNotFoundError,
    SandboxUnavailableError,
    TransferError,
    TransferTimeoutError,
)

# --- R21-R27: statuses ------------------------------------------------------------------------

STATUSES = {
    "302": TransferError,
    "206": TransferError,
    "204": TransferError,
    "304": TransferError,
    "400": FileKindError,
    "401": AuthenticationError,
    "403": FilePermissionError,
    "404": FileMissingError,
    "409": FileConflictError,
    "500": TransferError,
    "502": SandboxUnavailableError,
    "503": SandboxUnavailableError,
    "504": TransferTimeoutError,
    "999": TransferError,
}


@pytest.mark.parametrize("status", STATUSES)
async def test_a_status_is_an_error_whose_text_is_ours(connect: Connect, status: str) -> None:
    headers = b"Location: http://127.0.0.1:9/\r\nContent-Type: application/json\r\n"
    body = b"" if status in ("204", "304") else b'{"code":1,"message":"%s"}' % CANARY
    wire = answer(body, status=status.encode() + b" " + CANARY, headers=headers)
    peer = await refused(connect, sends(wire), STATUSES[status])
    assert len(peer.data_requests) == 1  # a redirect is not followed, and nothing is tried twice


async def test_the_token_does_not_follow_a_redirect(connect: Connect) -> None:
    with BadPeer(sends(answer(b"abc"))) as elsewhere:
        headers = b"Location: %s/files?path=/f\r\n" % elsewhere.url.encode()
        await refused(
            connect, sends(answer(b"", status=b"302 Found", headers=headers)), TransferError
        )
        assert elsewhere.talks == []


async def test_no_cookie_is_taken_and_none_is_sent_back(surface: str) -> None:
    """A sandbox's answer must not decide what the next request to another one carries."""
    wire = answer(b"abc", headers=b"Set-Cookie: a=b; Path=/\r\nSet-Cookie: c=%s\r\n" % CANARY)
    with BadPeer(sends(wire)) as peer:
        async with connected(peer, surface=surface, http_client="own") as subject:
            for _ in range(2):
                assert await subject.files("read_bytes", "/f", max_bytes=3) == b"abc"
            assert len(subject.http.cookies) == 0
        assert [request.header("cookie") for request in peer.data_requests] == [[], []]


async def test_an_upgrade_is_refused(connect: Connect) -> None:
    wire = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc"
    await refused(connect, sends(wire), TransferError)


async def test_the_code_of_our_own_services_decides_before_the_status(connect: Connect) -> None:
    wire = answer(CANARY, status=b"404 Not Found", headers=b"agent-sandbox-error: E5001\r\n")
    await refused(connect, sends(wire), SandboxNotFoundError)


@pytest.mark.parametrize("code", [b"E9999", b"", b"E4003", b"\xff", b"E6000"])
async def test_an_unknown_code_falls_back_to_the_status(connect: Connect, code: bytes) -> None:
    wire = answer(CANARY, status=b"404 Not Found", headers=b"agent-sandbox-error: %s\r\n" % code)
    await refused(connect, sends(wire), FileMissingError)


async def test_a_code_beside_a_success_means_nothing(connect: Connect) -> None:
    wire = answer(b"abc", headers=b"agent-sandbox-error: E4001\r\n")
    with BadPeer(sends(wire)) as peer:
        async with connect(peer) as subject:
            assert await subject.files("read_bytes", "/f", max_bytes=3) == b"abc"


@pytest.mark.parametrize("status", [b"302 Found", b"206 Partial Content"])
async def test_a_code_counts_beside_an_error_alone(connect: Connect, status: bytes) -> None:
    wire = answer(b"abc", status=status, headers=b"agent-sandbox-error: E4001\r\n")
    await refused(connect, sends(wire), TransferError)


async def test_an_endless_error_body_is_not_read(connect: Connect) -> None:
    def script(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            talk.send(b"10000\r\n" + bytes(65_536) + b"\r\n")

    peer = await refused(connect, script, FileMissingError)
    assert peer.data_talk().sent_bytes < 8_000_000


async def test_a_reset_in_the_middle_is_a_broken_transfer(connect: Connect) -> None:
    def script(talk: Talk) -> None:
        talk.send(answer(b"abc", length=100))
        talk.reset()

    await refused(connect, script, TransferError)


async def test_a_refused_connection_is_an_unavailable_sandbox(connect: Connect) -> None:
    with BadPeer(sends(answer(b"abc"), fin=True)) as peer:
        async with connect(peer) as subject:
            await subject.files("read_bytes", "/f", max_bytes=3)
            peer.__exit__(None, None, None)
            with pytest.raises(SandboxUnavailableError):
                await subject.files("read_bytes", "/f", max_bytes=3)
            assert subject.busy() == 0
