"""A real upload server for tests: uvicorn in a thread, SQLite and local blobs in a directory."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.applications import Starlette
from tests.support.raw_http import Answer, exchange, request

from agent_sandbox.uploads.blobs.local import LocalBlobs
from agent_sandbox.uploads.http import upload_routes, uvicorn_settings
from agent_sandbox.uploads.models import Principal, UploadsConfig, UploadSession
from agent_sandbox.uploads.service import UploadService
from agent_sandbox.uploads.store.sqlite import SqliteStore

T = TypeVar("T")

PARSERS = ("strict", "h11", "httptools")
"""Our own protocol, and the two of uvicorn that an embedder may run the routes under."""

OWNER = Principal("credential-1", "workspace-1")
TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Ticket:
    """What `create_upload_url` hands out."""

    upload_id: str
    path: str
    secret: str
    size: int

    def put(self, body: bytes, *lines: str | bytes, length: int | None = None) -> bytes:
        """Return the bytes of a PUT in good order."""
        size = len(body) if length is None else length
        return request(
            "PUT",
            self.path,
            f"Authorization: {self.secret}",
            f"Content-Length: {size}",
            *lines,
            body=body,
        )


class UploadServer:
    """A running server, called from the test's thread."""

    def __init__(self, config: UploadsConfig, parser: str, root: Path, port: socket.socket) -> None:
        self.config = config
        self.port: int = port.getsockname()[1]
        self.root = root
        self.service: UploadService
        self._parser = parser
        self._socket = port
        self._ready = threading.Event()
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="upload-server")

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(TIMEOUT_S)
        if self._failed is not None:
            raise self._failed

    def stop(self) -> None:
        self._uvicorn.should_exit = True
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a coroutine in the server's event loop."""

        async def run() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(TIMEOUT_S)

    def create(self, size: int, sha256: str | None = None, name: str = "file.bin") -> Ticket:
        session, secret = self.call(lambda: self.service.create(OWNER, name, size, sha256))
        path = self.config.endpoint("upload", session.upload_id)
        return Ticket(session.upload_id, path, secret, size)

    def session(self, upload_id: str) -> UploadSession:
        return self.call(lambda: self.service.get(OWNER, upload_id))

    def state(self, ticket: Ticket) -> str:
        return str(self.session(ticket.upload_id).state)

    def settled(self, ticket: Ticket) -> str:
        """Return the state once the session is no longer receiving."""
        waited = self.call(lambda: self.service.get(OWNER, ticket.upload_id, wait_s=10.0))
        return str(waited.state)

    def send(self, data: bytes, *, to_head: bool = False) -> Answer:
        """Send raw bytes on a new connection and return the answer."""
        return exchange(self.port, data, to_head=to_head)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # handed to the test's thread
            self._failed = error
            self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        settings: dict[str, Any] = uvicorn_settings(self.config)
        if self._parser != "strict":
            settings["http"] = self._parser
        store = SqliteStore(self.root / "uploads.sqlite")
        await store.migrate()
        try:
            self.service = UploadService(self.config, store, LocalBlobs(self.root / "blobs"))
            app = Starlette(routes=upload_routes(self.service))
            self._uvicorn = uvicorn.Server(
                uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5, **settings)
            )
            self.loop.call_soon(self._ready.set)
            await self._uvicorn.serve([self._socket])
        finally:
            await store.close()


@contextmanager
def running(root: Path, parser: str = "strict", **settings: Any) -> Iterator[UploadServer]:
    """Serve uploads on a free loopback port for the block."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        number = port.getsockname()[1]
        config = UploadsConfig(f"http://127.0.0.1:{number}", b"k" * 32, **settings)
        server = UploadServer(config, parser, root, port)
        server.start()
        try:
            yield server
        finally:
            server.stop()
