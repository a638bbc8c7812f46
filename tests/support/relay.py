"""A relay before a real service that holds chosen requests back until the test lets them go."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

WAIT_S = 30.0


class Relay:
    """Passes bytes both ways; a request that contains `hold_on` waits.

    Attributes:
        url: Where to connect instead of the service.
        hold_on: Bytes of a request's head that make it wait; None lets everything pass.
        held: Set when a request waits.
        dropped: Set when the client closed a connection whose request waited.
        seen: The first line of every request that began a chunk.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self.url = ""
        self.hold_on: bytes | None = None
        self.held = asyncio.Event()
        self.dropped = asyncio.Event()
        self.seen: list[bytes] = []
        self._released = asyncio.Event()

    def hold(self, what: bytes) -> None:
        """Hold requests that contain `what` from now on."""
        self.hold_on = what
        self.held.clear()
        self.dropped.clear()
        self._released.clear()

    def release(self) -> None:
        """Let everything go on."""
        self.hold_on = None
        self._released.set()

    async def wait_held(self) -> None:
        """Wait until a request waits here."""
        await asyncio.wait_for(self.held.wait(), WAIT_S)

    async def wait_dropped(self) -> None:
        """Wait until the client has closed the connection of a request that waits."""
        await asyncio.wait_for(self.dropped.wait(), WAIT_S)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection."""
        up_reader, up_writer = await asyncio.open_connection(*self._upstream)
        down = asyncio.create_task(_copy(up_reader, writer))
        try:
            while chunk := await reader.read(1 << 20):
                self.seen.append(chunk.partition(b"\r\n")[0])
                if self.hold_on is not None and self.hold_on in chunk:
                    chunk += await self._hold(reader)
                    if not chunk or reader.at_eof():
                        return
                up_writer.write(chunk)
                await up_writer.drain()
        except ConnectionError:
            pass
        finally:
            down.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await down
            for end in (writer, up_writer):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    async def _hold(self, reader: asyncio.StreamReader) -> bytes:
        """Collect what follows until released; note the client's going."""
        self.held.set()
        rest = b""
        released = asyncio.create_task(self._released.wait())
        try:
            while not released.done():
                more = asyncio.create_task(reader.read(1 << 20))
                await asyncio.wait({more, released}, return_when=asyncio.FIRST_COMPLETED)
                if not more.done():
                    more.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        rest += await more
                    break
                chunk = more.result()
                if not chunk:
                    self.dropped.set()
                    break
                rest += chunk
        except ConnectionError:
            self.dropped.set()
        finally:
            released.cancel()
        return rest


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while chunk := await reader.read(1 << 20):
            writer.write(chunk)
            await writer.drain()
        writer.close()


@asynccontextmanager
async def relay_to(upstream: str) -> AsyncIterator[Relay]:
    """Run a relay on a free port of loopback."""
    relay = Relay(upstream)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=1 << 22)
    host, port = server.sockets[0].getsockname()
    relay.url = f"http://{host}:{port}"
    try:
        yield relay
    finally:
        relay.release()
        server.close()
