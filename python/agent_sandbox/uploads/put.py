"""Send a local file to an upload session: what `agent-sandbox put FILE` does."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

from agent_sandbox.bytestream import Sha256
from agent_sandbox.errors import (
    AgentSandboxError,
    ArgumentError,
    DeclarationError,
    FileKindError,
    TransferError,
    TransferTimeoutError,
    UploadOutcomeUnknownError,
)
from agent_sandbox.uploads.exchange import Exchange, Headers, Response
from agent_sandbox.uploads.put_answers import PutResult, judged

CHUNK_BYTES = 262_144
"""How much of the file is read and sent at once."""

CONTINUE_WAIT_S = 1.0
"""How long to wait for `100 Continue` before the body is sent anyway (RFC 9110 10.1.1)."""

_MAX_ANSWER_BYTES = 65_536
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

Progress = Callable[[int, int], None]
"""Called with the bytes sent so far and the bytes in all."""


async def put_file(
    url: str,
    secret: str,
    path: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    connect_timeout_s: float = 10.0,
    deadline_s: float = 90.0,
    ssl_context: ssl.SSLContext | None = None,
) -> PutResult:
    """Send one file with one PUT and return what the server stored.

    The request is never repeated: a session takes one attempt. Proxy settings of the environment
    are not used. The secret goes out as the `Authorization` header and nowhere else.

    Args:
        url: The session's address. Plain http only to this machine itself.
        secret: The one-time code: the whole value of the header.
        path: A regular file. It must not change while it is sent.
        progress: Called in this event loop, about every 256 KiB.
        connect_timeout_s: Time for the connection.
        deadline_s: Longest time after it in which nothing goes on: no piece of the file is taken,
            no answer comes. How long the whole may take is the server's to say.
        ssl_context: TLS settings; the system's CAs by default.

    Raises:
        ArgumentError: E2001, the address or the code cannot be right; nothing was sent.
        FileKindError: E4004, the path is no regular file.
        TransferError: E4007, the server could not be reached and has seen no byte of the file:
            another try may help. With `answered_status`, something else answered at the address.
        UploadOutcomeUnknownError: E7011, the connection broke in or after the body, or a proxy
            answered instead of the server. Do not send again: ask the agent to look
            (`get_upload`).
        DeclarationError: E2005, the file changed while it was sent, or the server refused its
            size or digest.
        AgentSandboxError: What the server answered, by its stable code.
        OSError: The file cannot be opened.
    """
    where = _Where.of(url)
    if not secret or not secret.isascii() or not secret.isprintable() or secret != secret.strip():
        raise ArgumentError
    with _open(path) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            first = await asyncio.to_thread(file.read, 1)
            if first:  # as below /proc: the size is not that of the content
                raise FileKindError
        exchange = await _connect(where, ssl_context, connect_timeout_s)
        try:
            return await _Put(exchange, file, size, progress).run(where, secret, deadline_s)
        finally:
            await exchange.close()


def _open(path: str | os.PathLike[str]) -> BinaryIO:
    if not Path(path).is_file():  # before open, which would hang on a FIFO
        raise FileKindError
    return open(path, "rb")


@dataclass(frozen=True, slots=True)
class _Where:
    """The parts of an upload's address."""

    secure: bool
    host: str
    port: int
    target: str
    authority: str

    @classmethod
    def of(cls, url: str) -> _Where:
        try:
            parts = urlsplit(url)
            port, host = parts.port, parts.hostname or ""
        except ValueError:
            raise ArgumentError from None
        secure = parts.scheme == "https"
        allowed = secure or (parts.scheme == "http" and host in _LOOPBACK)
        clean = url.isascii() and url.isprintable() and " " not in url
        if not allowed or not host or not clean or parts.username is not None or parts.query:
            raise ArgumentError
        return cls(secure, host, port or (443 if secure else 80), parts.path or "/", parts.netloc)


async def _connect(where: _Where, context: ssl.SSLContext | None, timeout_s: float) -> Exchange:
    tls = (context or ssl.create_default_context()) if where.secure else None
    try:
        async with asyncio.timeout(timeout_s):
            return Exchange(*await asyncio.open_connection(where.host, where.port, ssl=tls))
    except OSError:  # with TimeoutError and ssl.SSLError
        raise TransferError from None


class _Put:
    """One attempt: the body goes out while the answer may already come in."""

    def __init__(
        self, exchange: Exchange, file: BinaryIO, size: int, progress: Progress | None
    ) -> None:
        self._exchange = exchange
        self._file = file
        self._size = size
        self._progress = progress or (lambda _done, _total: None)
        self._sha256 = Sha256()
        self._sent_any = False
        self._alive: Callable[[], None] = lambda: None

    async def run(self, where: _Where, secret: str, deadline_s: float) -> PutResult:
        headers: Headers = [
            (b"host", where.authority.encode()),
            (b"authorization", secret.encode()),
            (b"content-type", b"application/octet-stream"),
            (b"content-length", str(self._size).encode()),
            (b"user-agent", b"agent-sandbox"),
            (b"connection", b"close"),
        ]
        if self._size:
            headers.append((b"expect", b"100-continue"))
        try:
            async with asyncio.timeout(deadline_s) as timer:
                self._alive = lambda: timer.reschedule(_now() + deadline_s)
                await self._exchange.send_head("PUT", where.target, headers)
                response = await self._answer()
                body = await self._read_answer()
        except TransferError:
            raise self._broken() from None
        except TimeoutError:
            raise self._broken(TransferTimeoutError) from None
        return judged(
            response,
            body,
            size_bytes=self._size,
            sha256=self._sha256.hexdigest(),
            may_have_begun=self._may_have_begun,
        )

    def _broken(self, before: type[AgentSandboxError] = TransferError) -> AgentSandboxError:
        """Return the error where no answer of the endpoint came, or none that can be read."""
        return UploadOutcomeUnknownError(state="unknown") if self._may_have_begun else before()

    @property
    def _may_have_begun(self) -> bool:
        # Without a byte of the body (and with one to send) the attempt cannot have begun.
        return self._sent_any or not self._size

    async def _answer(self) -> Response:
        answer = asyncio.create_task(self._exchange.response())
        sender = asyncio.create_task(self._send_body(answer))
        try:
            await asyncio.wait((answer, sender), return_when=asyncio.FIRST_COMPLETED)
            if sender.done() and isinstance(sender.exception(), DeclarationError):
                await sender
            # A broken pipe while sending: the server's reason may have arrived all the same.
            return await answer
        finally:
            for task in (answer, sender):
                task.cancel()
            await asyncio.gather(answer, sender, return_exceptions=True)

    async def _send_body(self, answer: asyncio.Task[Response]) -> None:
        if self._size:
            go = asyncio.create_task(self._exchange.continued.wait())
            try:
                await asyncio.wait(
                    (go, answer), timeout=CONTINUE_WAIT_S, return_when=asyncio.FIRST_COMPLETED
                )
            finally:
                go.cancel()
        sent = 0
        while sent < self._size and not answer.done():
            chunk = await asyncio.to_thread(self._read, min(CHUNK_BYTES, self._size - sent))
            if not chunk:
                raise DeclarationError  # the file became shorter
            self._sent_any = True
            await self._exchange.send(chunk)
            sent += len(chunk)
            self._alive()
            self._progress(sent, self._size)
        if sent == self._size:
            await self._exchange.end()

    def _read(self, size: int) -> bytes:
        chunk = self._file.read(size)
        self._sha256.update(chunk)
        return chunk

    async def _read_answer(self) -> bytes:
        body = bytearray()
        async for chunk in self._exchange.chunks():
            body += chunk
            if len(body) > _MAX_ANSWER_BYTES:
                raise TransferError
        return bytes(body)


def _now() -> float:
    return asyncio.get_running_loop().time()
