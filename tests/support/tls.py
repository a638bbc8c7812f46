"""A proxy on loopback that speaks TLS and passes everything on."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit

import trustme

END_TIMEOUT_S = 20


class TlsProxy:
    """Passes bytes on to `upstream`, once that is set.

    Attributes:
        upstream: URL of the service behind it.
        port: Where it listens.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._stop = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._run()])
        self.upstream = ""
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        assert self._listening.wait(END_TIMEOUT_S)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(END_TIMEOUT_S)
        assert not self._thread.is_alive()
        self._loop.close()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._stop.wait()
        server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        to = urlsplit(self.upstream)
        up_reader, up_writer = await asyncio.open_connection(to.hostname, to.port)
        try:
            await asyncio.gather(_copy(reader, up_writer), _copy(up_reader, writer))
        except asyncio.CancelledError:
            return  # the end of the proxy
        finally:
            up_writer.transport.abort()
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@contextlib.contextmanager
def tls_before(certificate: trustme.LeafCert) -> Iterator[TlsProxy]:
    """Run a proxy with a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    proxy = TlsProxy(context)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.end()
