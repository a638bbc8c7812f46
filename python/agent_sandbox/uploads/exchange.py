"""One HTTP/1.1 request over a given connection, for `put` and `fetch`: never a pool, never a proxy.

`put` must hear an answer while it still sends, and `fetch` must choose the address that it
connects to; general clients hide both.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import h11

from agent_sandbox.errors import TransferError
from agent_sandbox.limits import CLOSE_TIMEOUT_S

READ_BYTES = 262_144
"""Most bytes taken from the connection at once."""

_EVENTS_A_TURN = 64
"""Most events taken from what has arrived before everybody else has a turn: a peer that sends
chunks of one byte, or interim responses without end, keeps the loop busy for seconds otherwise."""

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Response:
    """The final answer to a request.

    Attributes:
        status: 200 to 599.
        headers: Its header lines, names in lower case.
    """

    status: int
    headers: Headers

    def values(self, name: bytes) -> list[bytes]:
        """Return the value of each line with this lower-case name."""
        return [value for key, value in self.headers if key == name]


class Exchange:
    """A request and its response on one connection, which is closed after it.

    Every failure of the peer or of the connection is a `TransferError`; deadlines are the
    caller's (`asyncio.timeout`).
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.CLIENT)
        self._events = 0
        self.continued = asyncio.Event()
        """Set once the server has said `100 Continue`."""

    async def send_head(self, method: str, target: str, headers: Headers) -> None:
        """Send the request line and the header lines."""
        await self._send(h11.Request(method=method, target=target, headers=headers))

    async def send(self, chunk: bytes) -> None:
        """Send a piece of the body."""
        await self._send(h11.Data(data=chunk))

    async def end(self) -> None:
        """Say that the body is complete."""
        await self._send(h11.EndOfMessage())

    async def response(self) -> Response:
        """Wait for the final response; interim ones are noted and passed over.

        Raises:
            TransferError: E4007, where the connection ended or what came is no proper response.
        """
        while True:
            event = await self._next()
            if isinstance(event, h11.InformationalResponse):
                if event.status_code == 100:
                    self.continued.set()
                elif event.status_code == 101:
                    raise TransferError
            elif isinstance(event, h11.Response):
                return Response(event.status_code, list(event.headers))
            else:
                raise TransferError

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body; it ends only where its framing says so.

        Raises:
            TransferError: E4007, where the connection ended before the body did.
        """
        while True:
            event = await self._next()
            if isinstance(event, h11.Data):
                yield bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                return
            else:
                raise TransferError

    async def close(self) -> None:
        """Close the connection in bounded time, whatever state it is in."""
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._writer.wait_closed()

    async def _send(self, event: h11.Event) -> None:
        try:
            data = self._h11.send(event)
            if data:
                self._writer.write(data)
                await self._writer.drain()
        except (OSError, h11.LocalProtocolError):
            raise TransferError from None

    async def _next(self) -> object:
        self._events += 1
        if self._events % _EVENTS_A_TURN == 0:
            await asyncio.sleep(0)
        try:
            while (event := self._h11.next_event()) is h11.NEED_DATA:
                self._h11.receive_data(await self._reader.read(READ_BYTES))
        except (OSError, h11.RemoteProtocolError):
            raise TransferError from None
        return event
