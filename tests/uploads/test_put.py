"""`put_file`: one PUT of a local file, and what it says when that goes wrong."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.upload_server import UploadServer, running

from agent_sandbox.errors import (
    ArgumentError,
    DeclarationError,
    FileKindError,
    TransferError,
    TransferTimeoutError,
    UploadBodyError,
    UploadConflictError,
    UploadLengthError,
    UploadNotFoundError,
    UploadOutcomeUnknownError,
    UploadSizeError,
)
from agent_sandbox.uploads.put import put_file
from agent_sandbox.uploads.put_answers import PutResult

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UploadServer]:
    with running(tmp_path_factory.mktemp("uploads")) as made:
        yield made


def url(server: UploadServer, path: str) -> str:
    return f"http://127.0.0.1:{server.port}{path}"


@pytest.mark.parametrize("size", [0, 5, 3_000_001])
async def test_a_file_arrives_and_the_result_is_checked_on_both_sides(
    server: UploadServer, tmp_path: Path, size: int
) -> None:
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    ticket = server.create(size)
    seen: list[tuple[int, int]] = []
    result = await put_file(
        url(server, ticket.path),
        ticket.secret,
        tmp_path / "file",
        progress=lambda done, total: seen.append((done, total)),
    )
    digest = hashlib.sha256(data).hexdigest()
    assert result == PutResult(ticket.upload_id, "stored", size, digest)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1:] == ([(size, size)] if size else [])


async def test_a_refusal_is_the_error_that_the_server_names(
    server: UploadServer, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 5_000_000)
    ticket = server.create(5)
    with pytest.raises(UploadNotFoundError):
        await put_file(url(server, ticket.path), "wrong", file)
    with pytest.raises(UploadLengthError):
        await put_file(url(server, ticket.path), ticket.secret, file)
    assert server.state(ticket) == "pending"
    file.write_bytes(b"hello")
    await put_file(url(server, ticket.path), ticket.secret, file)
    with pytest.raises(UploadConflictError):
        await put_file(url(server, ticket.path), ticket.secret, file)


@pytest.mark.parametrize(
    "address",
    [
        "http://files.example/uploads/x",
        "ftp://127.0.0.1/uploads/x",
        "https://user@files.example/uploads/x",
        "https:///uploads/x",
        "https://files.example/uploads/x?token=1",
        "https://files.example/a b",
        "https://files.example:99999/x",
        "http://127.0.0.1/\r\nX: y",
    ],
)
async def test_an_address_that_cannot_be_right_is_refused_unsent(
    tmp_path: Path, address: str
) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    with pytest.raises(ArgumentError):
        await put_file(address, "secret", tmp_path / "file")


@pytest.mark.parametrize("secret", ["", " x", "x\n", "x\r\nY: z", "é", "x\0"])
async def test_a_code_that_cannot_be_right_is_refused_unsent(tmp_path: Path, secret: str) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    with pytest.raises(ArgumentError):
        await put_file("https://127.0.0.1:1/x", secret, tmp_path / "file")


async def test_only_a_regular_file_is_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo", tmp_path / "missing", "/dev/null"):
        with pytest.raises(FileKindError):
            await put_file("https://127.0.0.1:1/x", "secret", path)


# --- Peers that break off -------------------------------------------------------------------


@asynccontextmanager
async def peer(serve: Serve) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/uploads/x"


async def head(reader: asyncio.StreamReader) -> bytes:
    return await reader.readuntil(b"\r\n\r\n")


async def test_a_file_whose_size_is_not_that_of_its_content_is_not_sent_as_empty() -> None:
    with pytest.raises(FileKindError):
        await put_file("http://127.0.0.1:1/uploads/x", "code", "/proc/self/status")


async def test_no_connection_is_an_error_that_a_retry_may_mend(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    async with peer(lambda r, w: asyncio.sleep(0)) as address:
        pass
    with pytest.raises(TransferError):
        await put_file(address, "secret", tmp_path / "file")


async def test_a_break_before_the_body_has_used_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.close()

    async with peer(serve) as address:
        with pytest.raises(TransferError):
            await put_file(address, "secret", tmp_path / "file")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_a_lost_answer_is_an_unknown_outcome(tmp_path: Path, answer: bytes) -> None:
    (tmp_path / "file").write_bytes(b"hello")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(5)
        writer.write(answer)
        writer.close()

    async with peer(serve) as address:
        with pytest.raises(UploadOutcomeUnknownError) as caught:
            await put_file(address, "secret", tmp_path / "file")
    assert caught.value.state == "unknown"


async def test_a_silent_server_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await done.wait()
        writer.close()

    async with peer(serve) as address:
        with pytest.raises((TransferTimeoutError, UploadOutcomeUnknownError)):
            await put_file(address, "secret", tmp_path / "file", deadline_s=0.3)
        with pytest.raises(UploadOutcomeUnknownError):
            await put_file(address, "secret", tmp_path / "file", deadline_s=1.5)
        done.set()


async def test_an_early_refusal_is_heard_while_the_body_is_still_going_out(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"x" * 30_000_000)
    code = b"HTTP/1.1 413 Content Too Large\r\nagent-sandbox-error: E7014\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.readexactly(1_000_000)
        writer.write(code + b'content-length: 11\r\n\r\n{"limit":9}')
        writer.write_eof()
        await reader.read()  # hears the client stop
        writer.close()

    async with peer(serve) as address:
        with pytest.raises(UploadSizeError) as caught:
            await put_file(address, "secret", tmp_path / "file")
    assert caught.value.limit == 9


async def test_a_server_that_counted_other_bytes_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    body = b'{"upload_id":"x","state":"stored","size_bytes":5,"sha256":"00"}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        await reader.readexactly(5)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        writer.close()

    async with peer(serve) as address:
        with pytest.raises(DeclarationError):
            await put_file(address, "secret", tmp_path / "file")


async def test_a_file_that_becomes_shorter_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 10_000_000)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        os.truncate(file, 1_000)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await reader.read()
        while await reader.read(1_000_000):
            pass
        writer.close()

    async with peer(serve) as address:
        with pytest.raises(DeclarationError):
            await put_file(address, "secret", file)


# --- Answers that are not the server's, or not what they should be ----------------------------


def answering(answer: bytes, *, before_body: bool = False) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        if not before_body:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            await reader.readexactly(5)
        writer.write(answer)
        writer.close()

    return serve


def response(status: int, body: bytes = b"", code: bytes = b"") -> bytes:
    named = b"agent-sandbox-error: %b\r\n" % code if code else b""
    return b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n%b\r\n%b" % (status, len(body), named, body)


def stored(upload_id: str) -> bytes:
    digest = hashlib.sha256(b"hello").hexdigest()
    body = {"upload_id": upload_id, "state": "stored", "size_bytes": 5, "sha256": digest}
    return response(200, json.dumps(body).encode())


NOT_OURS = {
    "a gateway that waited in vain": response(504, b"<html>"),
    "a gateway that lost the server": response(502),
    "a redirect": response(302),
    "a code that nobody knows": response(500, b"{}", b"E9999"),
    "a size that is no number": response(413, b'{"limit":"\\u001b[31m"}', b"E7014"),
    "a page instead of the result": response(200, b"<html>"),
    "a result nested without an end": response(200, b"[" * 60_000),
    "an id that a terminal would obey": stored("\x1b[31mx"),
}


@pytest.mark.parametrize("case", NOT_OURS)
async def test_an_answer_that_is_not_the_servers_never_says_that_the_code_still_works(
    tmp_path: Path, case: str
) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    async with peer(answering(NOT_OURS[case])) as address:
        with pytest.raises(UploadOutcomeUnknownError):
            await put_file(address, "secret", tmp_path / "file")


async def test_a_gateway_that_refuses_before_the_body_has_used_nothing_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    async with peer(answering(response(502), before_body=True)) as address:
        with pytest.raises(TransferError):
            await put_file(address, "secret", tmp_path / "file")


async def test_a_refusal_with_a_body_that_nobody_can_read_keeps_its_code(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"hello")
    async with peer(answering(response(400, b"[" * 60_000, b"E7015"))) as address:
        with pytest.raises(UploadBodyError):
            await put_file(address, "secret", tmp_path / "file")


async def test_a_slow_line_is_given_up_only_when_nothing_goes_on(tmp_path: Path) -> None:
    data = os.urandom(24_000_000)
    (tmp_path / "file").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    body = {"upload_id": "x", "state": "stored", "size_bytes": len(data), "sha256": digest}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        for _ in range(12):
            await reader.readexactly(2_000_000)
            await asyncio.sleep(0.3)  # the line is slow
        writer.write(response(200, json.dumps(body).encode()))
        writer.close()

    async with peer(serve) as address:
        result = await put_file(address, "secret", tmp_path / "file", deadline_s=2.5)
    assert result.sha256 == digest
