"""What a peer can leave open, and what ends it. The bounds are patched to moments here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from tests.support.express import Box, Service
from uvicorn.config import Config
from uvicorn.server import ServerState

from agent_sandbox.express import requests, upload
from agent_sandbox.express import service as service_module
from agent_sandbox.express.connection import Connection
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.server import uvicorn_config
from agent_sandbox.express.tree import Tree
from agent_sandbox.http1 import stall

Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SOON_S = 0.1


class Served:
    """Express in this process, behind a real socket."""

    def __init__(self, address: tuple[str, int], state: ServerState, config: Config) -> None:
        self.address = address
        self.state = state
        self.config = config
        self.url = f"http://{address[0]}:{address[1]}"
        self._peers: list[asyncio.StreamWriter] = []

    async def connect(self) -> Peer:
        with socket.socket() as small:
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            small.setblocking(False)
            await asyncio.get_running_loop().sock_connect(small, self.address)
            peer = await asyncio.open_connection(sock=small.dup(), limit=4_096)
        self._peers.append(peer[1])
        return peer

    async def close(self) -> None:
        """Cut the connections of the peers."""
        for writer in self._peers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    root = Descriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    service = service_module.Service(root, keys=(), hosts=None, engine=Engine(None))
    config = uvicorn_config(service.app)
    config.load()
    state = ServerState()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(config=config, server_state=state, app_state={}),
        sock=listener,
    )
    served = Served(listener.getsockname(), state, config)
    try:
        yield served
    finally:
        await served.close()
        server.close()
        await service.close()
        for task in state.tasks:
            task.cancel()
        for one in tuple(state.connections):
            one.transport.abort()


async def ended(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection's end, however that came about."""
    data = b""
    async with asyncio.timeout(10):
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(65_536):
                data += chunk
    return data


async def sandbox_with(served: Served, size: int) -> str:
    """Make a sandbox with a file `/a`; return the headers of a request for it."""
    async with httpx2.AsyncClient(base_url=served.url, trust_env=False) as http:
        made = (await http.post("/v2/sandboxes", json={})).json()
        headers = {"e2b-sandbox-id": made["sandboxID"], "x-access-token": made["envdAccessToken"]}
        await http.post("/files?path=/a", content=os.urandom(size), headers=headers)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"host: localhost\r\n{lines}"


@pytest.mark.parametrize("sent", [b"", b"GET /he", b"GET /health HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(Connection, "header_deadline_s", SOON_S)
    monkeypatch.setattr(Connection, "linger_s", SOON_S)
    reader, writer = await served.connect()
    writer.write(sent)
    said = await ended(reader)
    assert said.startswith(b"HTTP/1.1 408 ") if sent else said == b""


async def test_the_next_head_and_the_rest_of_a_body_are_awaited_as_briefly(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "header_deadline_s", SOON_S)
    monkeypatch.setattr(Connection, "linger_s", SOON_S)
    for sent, answers in (
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /he", [b"204", b"408"]),
        (b"POST /none HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nx", [b"404"]),
    ):
        reader, writer = await served.connect()
        writer.write(sent)
        assert re.findall(rb"HTTP/1.1 (\d+) ", await ended(reader)) == answers


async def test_a_connection_without_a_next_request_is_ended(served: Served) -> None:
    served.config.timeout_keep_alive = 0
    reader, writer = await served.connect()
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await ended(reader)).startswith(b"HTTP/1.1 204 ")


async def test_a_request_under_way_is_not_measured_by_its_head(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "header_deadline_s", SOON_S)
    lines = await sandbox_with(served, 1)
    reader, writer = await served.connect()
    writer.write(f"POST /files?path=/b HTTP/1.1\r\n{lines}content-length: 1\r\n\r\n".encode())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(3 * SOON_S):
            await reader.read(1)
    writer.write(b"x")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_does_not_come_ends_with_an_error(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "HTTP_BODY_DEADLINE_S", SOON_S)
    reader, writer = await served.connect()
    writer.write(b"POST /v2/sandboxes HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
    assert (await reader.readline()).startswith(b"HTTP/1.1 504 ")


@pytest.mark.parametrize(
    "request_line",
    [
        "GET /files?path=/a HTTP/1.1",
        "GET /files?path=/a HTTP/1.1\r\naccept-encoding: gzip",
        # The answer whose head waits for the one before it to be taken.
        "GET /files?path=/a HTTP/1.1\r\n{lines}\r\nGET /files?path=/a HTTP/1.1",
    ],
)
@pytest.mark.parametrize("size", [1_000_000, 3_000_000])
async def test_a_reader_that_takes_nothing_holds_no_sandbox(
    served: Served, monkeypatch: pytest.MonkeyPatch, request_line: str, size: int
) -> None:
    lines = await sandbox_with(served, size)
    monkeypatch.setattr(Connection, "stall_s", SOON_S)
    monkeypatch.setattr(Connection, "write_idle_s", SOON_S)
    served.config.timeout_keep_alive = 0
    _, writer = await served.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]  # a socket's transport has it
    writer.write(f"{request_line}\r\n{lines}\r\n".format(lines=lines).encode())
    while not served.state.tasks:  # noqa: ASYNC110 - the server tells nobody that it began
        await asyncio.sleep(0)
    async with asyncio.timeout(10):
        while served.state.connections or served.state.tasks:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)


async def test_a_slow_reader_is_served_to_the_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = await sandbox_with(served, 1_000_000)
    monkeypatch.setattr(Connection, "stall_s", SOON_S)
    monkeypatch.setattr(Connection, "write_idle_s", 5 * SOON_S)
    monkeypatch.setattr(stall, "PROGRESS_BYTES", 1)
    reader, writer = await served.connect()
    writer.write(f"GET /files?path=/a HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode())
    taken = 0
    async with asyncio.timeout(20):
        while chunk := await reader.read(40_000):
            taken += len(chunk)
            await asyncio.sleep(0.01)  # slowness is what is tested
    assert taken > 1_000_000


async def test_a_reader_that_takes_next_to_nothing_is_given_up(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = await sandbox_with(served, 3_000_000)
    monkeypatch.setattr(Connection, "stall_s", SOON_S)
    monkeypatch.setattr(Connection, "write_idle_s", 20.0)
    monkeypatch.setattr(stall, "PROGRESS_BYTES", 2**40)
    reader, writer = await served.connect()
    writer.write(f"GET /files?path=/a HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode())
    taken = 0
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(2_000):
                taken += len(chunk)
                await asyncio.sleep(0.01)  # slowness is what is tested
    assert taken < 3_000_000


async def test_an_upload_that_stalls_ends_with_an_error_and_changes_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = await sandbox_with(served, 1)
    monkeypatch.setattr(upload, "STALL_TIMEOUT_S", SOON_S)
    reader, writer = await served.connect()
    writer.write(f"POST /files?path=/b HTTP/1.1\r\n{lines}content-length: 9\r\n\r\nx".encode())
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(b"HTTP/1.1 504 ")
    reader, writer = await served.connect()
    writer.write(f"GET /files?path=/b HTTP/1.1\r\n{lines}\r\n".encode())
    async with asyncio.timeout(10):
        assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")


async def test_a_small_file_that_shrinks_while_it_is_opened_is_sent_as_it_was_read(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = await sandbox_with(served, 9)
    real = Tree.open_file

    def shrinking(self: Tree, path: str) -> tuple[Descriptor, os.stat_result]:
        file, status = real(self, path)
        os.truncate(f"/proc/self/fd/{file.fd}", 3)
        return file, status

    monkeypatch.setattr(Tree, "open_file", shrinking)
    reader, writer = await served.connect()
    writer.write(f"GET /files?path=/a HTTP/1.1\r\n{lines}connection: close\r\n\r\n".encode())
    head, _, body = (await ended(reader)).partition(b"\r\n\r\n")
    assert b"content-length: 3" in head
    assert len(body) == 3


async def test_there_are_no_more_connections_than_descriptors_allow(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "most_connections", 2)
    (oldest, _), *kept = [await served.connect() for _ in range(3)]
    assert await ended(oldest) == b""  # it had waited longest
    for reader, writer in kept:
        writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 204 ")


def exchange(service: Service, data: str) -> bytes:
    """Send bytes and return all that comes until the connection ends or has nothing more."""
    url = httpx2.URL(service.url)
    with socket.create_connection((url.host, url.port or 80), timeout=10) as peer:
        peer.sendall(data.encode())
        peer.shutdown(socket.SHUT_WR)
        found = b""
        while chunk := peer.recv(65_536):
            found += chunk
        return found


class TestHeads:
    @pytest.mark.parametrize(
        ("version", "framing"),
        [("1.1", "content-length: 60\r\ntransfer-encoding: chunked"),
         ("1.0", "transfer-encoding: chunked\r\nconnection: keep-alive")],
    )  # fmt: skip
    def test_a_body_with_two_ends_is_refused_and_nothing_after_it_is_served(
        self, tcp: Service, version: str, framing: str
    ) -> None:
        box = tcp.create()
        lines = "".join(f"{name}: {value}\r\n" for name, value in box.headers.items())
        answer = exchange(
            tcp,
            f"POST /files?path=/a HTTP/{version}\r\nhost: localhost\r\n{lines}{framing}\r\n\r\n"
            "0\r\n\r\nGET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
        )
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in answer.lower()
        assert answer.count(b"HTTP/1.1 ") == 1
        assert box.get("/a").status_code == 404
        box.kill()

    def test_an_absolute_target_is_served_for_its_own_host(self, tcp: Service) -> None:
        def get(target: str) -> bytes:
            return exchange(tcp, f"GET {target} HTTP/1.1\r\nhost: localhost\r\n\r\n")[:12]

        assert get("http://localhost:9/health") == b"HTTP/1.1 204"
        assert get("HTTP://127.0.0.1/v2/sandboxes?limit=1") == b"HTTP/1.1 200"
        assert get("http://localhost") == b"HTTP/1.1 404"
        assert get("http://attacker.example/health") == b"HTTP/1.1 401"

    def test_a_list_may_come_in_several_lines(self, express: Service, box: Box) -> None:
        box.put("/a", b"x" * 10_000)
        headers = [*box.headers.items(), ("accept-encoding", "br"), ("accept-encoding", "gzip")]
        answer = express.http.get("/files?path=/a", headers=headers)
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.content == b"x" * 10_000
