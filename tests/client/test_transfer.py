"""Writes, downloads and streams against a peer that breaks the rules."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from pathlib import Path

import anyio.to_thread
import h11
import pytest
from tests.client.conftest import Connect, sends
from tests.support.bad_peer import SANDBOX_ID, WAIT_S, BadPeer, Talk, answer, chunked
from tests.support.express import wait_until

import agent_sandbox
import agent_sandbox.sync
from agent_sandbox.client._content import Content
from agent_sandbox.models import (
    AgentSandboxError,
    FileMissingError,
    FilePermissionError,
    FileSizeLimitError,
    SandboxNotFoundError,
    SandboxTimeoutError,
    SandboxUnavailableError,
    StorageFullError,
    TransferError,
    TransferTimeoutError,
    UploadTimeoutError,
    WatchLimitError,
)
from agent_sandbox.wire import connect as wire

WRITTEN = answer(b'[{"name":"f","type":"file","path":"/f"}]')


# --- Writes -----------------------------------------------------------------------------------


async def test_bytes_are_sent_raw_with_their_length(connect: Connect) -> None:
    data = bytes(range(256)) * 4096
    with BadPeer(sends(WRITTEN)) as peer:
        async with connect(peer) as subject:
            done = await subject.files("write", "/a b%2F+&é", data)
            request = peer.data_requests[0]
            assert request.line == "POST /files?path=%2Fa%20b%252F%2B%26%C3%A9 HTTP/1.1"
            assert request.header("content-type") == ["application/octet-stream"]
            assert request.header("content-length") == [str(len(data))]
            assert request.body == data
            assert (done.bytes_written, done.sha256) == (
                len(data),
                hashlib.sha256(data).hexdigest(),
            )


async def test_an_iterator_is_sent_in_chunks_and_digested_once(connect: Connect) -> None:
    with BadPeer(sends(WRITTEN)) as peer:
        async with connect(peer) as subject:
            done = await subject.files("write", "/f", iter([b"a", b"", b"bc"]))
            assert peer.data_requests[0].header("transfer-encoding") == ["chunked"]
            assert peer.data_requests[0].body == b"abc"
            assert (done.bytes_written, done.sha256) == (3, hashlib.sha256(b"abc").hexdigest())


@pytest.mark.parametrize("data", [5, None, [1, 2], ["a"], {"a": 1}, [b"a", None]], ids=str)
async def test_what_is_no_data_is_refused(connect: Connect, data: object) -> None:
    with BadPeer(sends(WRITTEN)) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TypeError):
                await subject.files("write", "/f", data)
            assert subject.busy() == 0


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("403 x", FilePermissionError),
        ("404 x", FileMissingError),
        ("408 x", UploadTimeoutError),
        ("413 x", StorageFullError),
        ("500 x", TransferError),
        ("502 x", SandboxUnavailableError),
        ("507 x", StorageFullError),
        ("302 x", TransferError),
        ("206 x", TransferError),
    ],
)
async def test_a_refused_write_says_why(
    connect: Connect, status: str, expected: type[AgentSandboxError]
) -> None:
    with BadPeer(sends(answer(b"{}", status=status.encode()))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(expected) as caught:
                await subject.files("write", "/f", b"abc")
            assert type(caught.value) is expected
            assert len(peer.data_requests) == 1
            assert subject.busy() == 0


async def test_an_early_refusal_is_heard_while_a_large_body_is_sent(connect: Connect) -> None:
    def script(talk: Talk) -> None:
        talk.send(answer(b"", status=b"507 full", headers=b"Connection: close\r\n"))
        talk.close()

    with BadPeer(script, read_writes=False) as peer:
        async with connect(peer) as subject:
            with pytest.raises(StorageFullError):
                await subject.files("write", "/f", bytes(8_000_000), deadline_s=10)
            assert subject.busy() == 0


@pytest.mark.parametrize("data", [bytes(16_000_000), None], ids=["bytes", "iterator"])
async def test_a_write_that_nobody_reads_ends_in_time(connect: Connect, data: bytes | None) -> None:
    with BadPeer(Talk.idle, read_writes=False) as peer:
        async with connect(peer) as subject:
            started = time.monotonic()
            source = data if data is not None else iter([bytes(1_000_000)] * 16)
            with pytest.raises(UploadTimeoutError) as caught:
                await subject.files("write", "/f", source, deadline_s=0.3)
            assert time.monotonic() - started < 3
            assert "inspect the remote file" in str(caught.value)


async def test_a_write_without_an_answer_ends_in_time(connect: Connect) -> None:
    def script(talk: Talk) -> None:
        talk.wait_end()

    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            with pytest.raises(UploadTimeoutError):
                await subject.files("write", "/f", b"abc", deadline_s=0.3)
            assert subject.busy() == 0
            assert peer.data_talk().ended.wait(WAIT_S)


async def test_an_endless_answer_to_a_write_is_cut(connect: Connect) -> None:
    def script(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            talk.send(b"1000\r\n" + bytes(4096) + b"\r\n")

    with BadPeer(script) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError):
                await subject.files("write", "/f", b"abc")
            assert subject.busy() == 0


# --- Downloads and streams --------------------------------------------------------------------

BROKEN = {
    "short": (answer(b"abcde", length=9), True),
    "no end": (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
    "chunked, cut": (chunked(b"abc", end=b""), True),
    "encoded": (answer(gzip.compress(b"abc"), headers=b"Content-Encoding: gzip\r\n"), False),
    "status": (answer(b"abc", status=b"206 Partial"), False),
}


@pytest.mark.parametrize(("wire_bytes", "fin"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("method", ["download", "stream"])
async def test_a_broken_body_leaves_no_file_and_no_connection(
    connect: Connect, method: str, wire_bytes: bytes, fin: bool, tmp_path: Path
) -> None:
    goal = tmp_path / "goal"
    goal.write_bytes(b"old")
    arguments = [goal] if method == "download" else []
    with BadPeer(sends(wire_bytes, fin=fin)) as peer:
        async with connect(peer) as subject:
            with pytest.raises(TransferError):
                await subject.files(method, "/f", *arguments)
            assert subject.busy() == 0
    assert goal.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["goal"]


@pytest.mark.parametrize("method", ["download", "stream"])
async def test_the_bound_and_the_clock_hold_for_them_too(
    connect: Connect, method: str, tmp_path: Path
) -> None:
    def stall(talk: Talk) -> None:
        talk.send(answer(b"abc", length=10))
        talk.wait_end()

    arguments = [tmp_path / "goal"] if method == "download" else []
    with BadPeer(sends(chunked(b"abc", b"d"))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(FileSizeLimitError):
                await subject.files(method, "/f", *arguments, max_bytes=3)
            assert subject.busy() == 0
    with BadPeer(stall) as peer:
        async with connect(peer) as subject:
            started = time.monotonic()
            with pytest.raises(TransferTimeoutError):
                await subject.files(method, "/f", *arguments, deadline_s=0.3)
            assert time.monotonic() - started < 3
            assert subject.busy() == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("mode", [None, 0o600, 0o640, 0o666])
async def test_a_download_is_never_more_open_than_what_it_replaces(
    connect: Connect, mode: int | None, tmp_path: Path
) -> None:
    goal = tmp_path / "goal"
    before = os.umask(0o022)
    try:
        if mode is not None:
            goal.touch()
            goal.chmod(mode)
        seen: list[int] = []

        def script(talk: Talk) -> None:
            talk.send(answer(bytes(2_000_000), length=3_000_000))
            wait_until(lambda: len(os.listdir(tmp_path)) == (1 if mode is None else 2), WAIT_S)
            (part,) = tmp_path.glob(".*.part")
            seen.append(part.stat().st_mode & 0o777)
            talk.send(bytes(1_000_000))

        with BadPeer(script) as peer:
            async with connect(peer) as subject:
                assert await subject.files("download", "/f", goal) == 3_000_000
    finally:
        os.umask(before)
    assert seen == [0o644 if mode is None else 0o600]
    assert goal.stat().st_mode & 0o777 == (0o644 if mode is None else mode)


async def test_a_download_into_a_missing_folder_is_the_systems_error(
    connect: Connect, tmp_path: Path
) -> None:
    with BadPeer(sends(answer(b"abc"))) as peer:
        async with connect(peer) as subject:
            with pytest.raises(FileNotFoundError):
                await subject.files("download", "/f", tmp_path / "none" / "goal")
            assert subject.busy() == 0


async def test_a_stream_that_is_left_early_gives_its_connection_back(connect: Connect) -> None:
    def endless(talk: Talk) -> None:
        talk.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            talk.send(b"1000\r\n" + bytes(4096) + b"\r\n")

    with BadPeer(endless) as peer:
        async with connect(peer) as subject:
            if subject.blocking:
                with subject.sandbox.files.stream("/f") as chunks:
                    assert len(next(chunks)) > 0
            else:
                async with subject.sandbox.files.stream("/f") as chunks:
                    assert len(await anext(chunks)) > 0
            assert subject.busy() == 0
            assert peer.data_talk().ended.wait(WAIT_S)


# --- Watches ----------------------------------------------------------------------------------


def _stream(*messages: bytes, end: bytes = b"") -> bytes:
    body = b"".join(wire.encode_envelope(message) for message in messages) + end
    return chunked(*filter(None, [body]), headers=b"Content-Type: application/connect+json\r\n")


EVENT = b'{"filesystem":{"name":"a","type":"EVENT_TYPE_CREATE"}}'
GONE = wire.encode_end(wire.ErrorBody(code="not_found", message="canary"))
FULL = wire.encode_end(wire.ErrorBody(code="resource_exhausted", message="canary"))
NAMED = wire.encode_end(wire.ErrorBody(code="unknown"), {"Agent-Sandbox-Error": ["E4002"]})


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (_stream(b'{"start":{}}', EVENT, end=GONE), FileMissingError),
        (_stream(b'{"start":{}}', EVENT, end=FULL), WatchLimitError),
        (_stream(b'{"start":{}}', EVENT, end=NAMED), FilePermissionError),
        (_stream(b'{"start":{}}', EVENT), TransferError),
        (_stream(b"no json"), TransferError),
        (chunked(b"\x01\x00\x00\x00\x01x"), TransferError),
        (chunked(b"\x00\xff\xff\xff\xff"), TransferError),
        (
            answer(b"", status=b"429 x", headers=b"agent-sandbox-error: E5014\r\n"),
            WatchLimitError,
        ),
        (
            answer(b"", status=b"404 x", headers=b"agent-sandbox-error: E5001\r\n"),
            SandboxNotFoundError,
        ),
    ],
    ids=[
        "error at the end",
        "too many watches",
        "our own code at the end",
        "cut",
        "no json",
        "compressed",
        "huge",
        "refused by its code",
        "refused",
    ],
)  # fmt: skip
async def test_a_broken_watch_is_an_error(
    connect: Connect, body: bytes, expected: type[AgentSandboxError]
) -> None:
    with BadPeer(sends(body, fin=True)) as peer:
        async with connect(peer) as subject:
            with pytest.raises(expected):
                await subject.files("watch", "/d")
            assert subject.busy() == 0


# --- The control plane ------------------------------------------------------------------------


class Broken(BadPeer):
    """Answers the control plane with the same bytes for every request."""

    def __init__(self, data: bytes, *, fin: bool = True) -> None:
        super().__init__(sends(data, fin=fin))
        self._data, self._fin = data, fin

    def _serve(self, talk: Talk) -> None:
        talk.request()
        talk.send(self._data)
        if self._fin:
            talk.close()
        talk.wait_end()


@pytest.mark.parametrize(
    ("data", "fin", "expected"),
    [
        (b"", True, SandboxUnavailableError),
        (answer(b"not json"), True, SandboxUnavailableError),
        (answer(b"{}"), True, SandboxUnavailableError),
        (answer(b"<html>", status=b"502 Bad"), True, SandboxUnavailableError),
        (answer(b"", status=b"302 Found"), True, SandboxUnavailableError),
        (b"", False, SandboxTimeoutError),
        (
            answer(
                b'{"templateID":"b","sandboxID":"x","envdVersion":"1","envdAccessToken":"a\\nb"}'
            ),
            True,
            SandboxUnavailableError,
        ),
    ],
    ids=["closed", "no json", "empty", "html", "redirect", "silence", "token with a line break"],
)
async def test_a_broken_control_plane_is_an_unavailable_service(
    surface: str, data: bytes, fin: bool, expected: type[AgentSandboxError]
) -> None:
    with Broken(data, fin=fin) as peer:
        if surface == "async":
            client = agent_sandbox.SandboxClient(api_url=peer.url)
            with pytest.raises(expected):
                await client.create(deadline_s=10 if fin else 0.5)
            await client.aclose()
        else:
            blocking = agent_sandbox.sync.SandboxClient(api_url=peer.url)
            with pytest.raises(expected):
                await anyio.to_thread.run_sync(
                    lambda: blocking.create(deadline_s=10 if fin else 0.5)
                )
            blocking.close()


async def test_bytes_are_neither_copied_nor_cut_on_their_way_to_the_socket() -> None:
    data = bytes(1_048_576)
    assert [chunk is data for chunk in Content(data).for_blocking()] == [True]
    assert [chunk is data async for chunk in Content(data).for_async()] == [True]
    writer = h11.Connection(h11.CLIENT)
    writer.send(
        h11.Request(
            method="POST", target="/", headers=[("host", "h"), ("content-length", str(len(data)))]
        )
    )
    assert writer.send(h11.Data(data=data)) is data  # so httpcore gives it to one `send`


async def test_a_source_that_never_gives_anything_ends_in_time() -> None:
    read_end, write_end = os.pipe()
    with BadPeer(sends(WRITTEN), read_writes=False) as peer, os.fdopen(read_end, "rb") as source:
        async with agent_sandbox.SandboxClient(api_url=peer.url) as client:
            sandbox = await client.connect(SANDBOX_ID)
            with pytest.raises(UploadTimeoutError):
                await sandbox.files.write("/f", source, deadline_s=0.2)
        os.close(write_end)
