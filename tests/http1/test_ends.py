"""How a connection ends, told without a socket: what is dropped, and who is waited for."""

from __future__ import annotations

from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from agent_sandbox.http1 import StrictHTTPProtocol


class Pipe:
    """A transport that notes how it is ended."""

    def __init__(self) -> None:
        self.unsent = 0
        self.ended = ""

    def get_extra_info(self, name: str) -> None:
        return None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes) -> None:
        self.unsent += len(data)

    def write_eof(self) -> None:
        self.ended = "eof"

    def close(self) -> None:
        self.ended = "close"

    def abort(self) -> None:
        self.ended = "abort"

    def resume_reading(self) -> None:
        """Nothing waits here."""


@pytest.fixture
async def connection() -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("no request is whole")

    config = uvicorn.Config(app, lifespan="off", log_config=None)
    protocol = StrictHTTPProtocol(config, ServerState(), {})
    pipe: Any = Pipe()
    protocol.connection_made(pipe)
    yield protocol, pipe
    protocol.connection_lost(None)


async def test_a_closing_connection_is_cut_once_its_peer_takes_nothing_more(
    connection: tuple[StrictHTTPProtocol, Any],
) -> None:
    protocol, pipe = connection
    pipe.write(bytes(1_000))
    protocol._close(linger=False)
    for left in (600, 599, 1):
        pipe.unsent = left
        protocol._expired()
        assert pipe.ended == "close"
    protocol._expired()
    assert pipe.ended == "abort"


async def test_who_sends_on_after_a_refusal_is_cut_after_a_bounded_number_of_bytes(
    connection: tuple[StrictHTTPProtocol, Any],
) -> None:
    protocol, pipe = connection
    protocol.data_received(b"nonsense\r\n\r\n")
    assert pipe.ended == "eof"
    protocol.data_received(bytes(protocol.linger_max_bytes))
    assert pipe.ended == "eof"
    protocol.data_received(b"x")
    assert pipe.ended == "abort"
