"""A kernel whose room for epoll a sandbox has taken: the service goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import selectors
import signal
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agent_sandbox.express import server
from agent_sandbox.express.descriptors import Descriptor
from agent_sandbox.express.engine import Engine
from agent_sandbox.express.selector import Selector, make_loop
from agent_sandbox.express.service import Service


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave room for the registrations of a start, and for none that comes later."""
    register = selectors.EpollSelector.register
    room = [2]

    def refuse(self: selectors.EpollSelector, *arguments: Any) -> selectors.SelectorKey:
        room[0] -= 1
        if room[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return register(self, *arguments)

    monkeypatch.setattr(selectors.EpollSelector, "register", refuse)


@pytest.mark.usefixtures("full")
def test_connections_are_served_when_epoll_takes_no_more() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def talk(port: int, data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)  # more than the socket takes at once: it is waited for both ways
        assert await reader.readexactly(len(data)) == data
        writer.close()
        await writer.wait_closed()

    async def main() -> None:
        service = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with asyncio.timeout(30), service:
            port = service.sockets[0].getsockname()[1]
            await asyncio.gather(*(talk(port, bytes([n]) * 3_000_000) for n in range(5)))
        assert await asyncio.to_thread(lambda: "woken") == "woken"

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(main())


@pytest.mark.usefixtures("full")
def test_the_service_runs_on_such_a_loop(tmp_path: Path) -> None:
    answers: list[int] = []

    def ask(address: tuple[str, int]) -> None:
        try:
            with httpx2.Client(base_url=f"http://{address[0]}:{address[1]}") as http:
                answers.extend(http.get("/health").status_code for _ in range(2))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    class Server(server._Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            assert sockets
            address = sockets[0].getsockname()
            self.asked = asyncio.get_running_loop().run_in_executor(None, ask, address)

    state = Descriptor(os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    service = Service(state, keys=(), hosts=None, engine=Engine(None))
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        server._run(Server(service), listener)
    finally:
        signal.alarm(0)  # it would end this process if its end took too long
    listener.close()
    assert answers == [204, 204]


def test_what_epoll_has_no_room_for_is_found_changed_and_forgotten(full: None) -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    selector = Selector()
    for number, (ours, _) in enumerate(pairs):
        selector.register(ours, selectors.EVENT_READ, number)
    assert {key.data for key in selector.get_map().values()} == {0, 1, 2}
    assert selector.select(0) == []
    for _, theirs in pairs:
        theirs.send(b"x")
    assert sorted(key.data for key, _ in selector.select(1)) == [0, 1, 2]
    selector.modify(pairs[2][0], selectors.EVENT_WRITE, "w")
    assert selector.get_key(pairs[2][0]).data == "w"
    assert ("w", selectors.EVENT_WRITE) in [(key.data, mask) for key, mask in selector.select(1)]
    for ours, theirs in pairs:
        selector.unregister(ours)
        ours.close()
        theirs.close()
    assert not selector.get_map()
    selector.close()


def test_another_failure_of_epoll_is_raised() -> None:
    selector = Selector()
    with open("/proc/self/status", "rb") as file, pytest.raises(PermissionError):
        selector.register(file, selectors.EVENT_READ)
    assert not selector.get_map()
    selector.close()
