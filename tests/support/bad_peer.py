"""A deliberately bad HTTP peer: a raw socket, scripted byte by byte, that records what it saw.

It plays a sandbox service. The control plane is answered well, so that a client can connect; every
request for `/files` or an RPC is given to the test's script, which has the raw connection.

A script is a function of one `Talk`. When it returns, the connection is kept open until the client
closes it (`Talk.ended` tells when and how), unless the script closed or reset it itself.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

WAIT_S = 20.0
"""Longest wait of a test for anything: a test that hangs fails here."""

TOKEN = "token-canary-3f1c"
SANDBOX_ID = "sandbox0peer"


@dataclass
class Request:
    """One request as it came."""

    head: bytes
    body: bytes

    @property
    def line(self) -> str:
        return self.head.split(b"\r\n", 1)[0].decode("latin-1")

    def header(self, name: str) -> list[str]:
        """Return the values of a header, one for each of its lines."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.partition(":") for line in lines if line)
        return [value.strip() for key, _, value in pairs if key.lower() == name.lower()]


class PeerGoneError(Exception):
    """The client closed the connection while the script was at work."""


@dataclass
class Talk:
    """One connection.

    Attributes:
        requests: What came on it, in order.
        sent_bytes: What `send` has accepted so far.
        ended: Set once the client has closed or reset its side.
        end: `fin`, `rst`, or None while the connection stands.
    """

    sock: socket.socket
    peer: BadPeer
    requests: list[Request] = field(default_factory=list)
    sent_bytes: int = 0
    ended: threading.Event = field(default_factory=threading.Event)
    end: str | None = None
    closed_by_us: bool = False
    _buffer: bytes = b""

    def secure(self, tls: ssl.SSLContext) -> None:
        """Begin to speak TLS."""
        try:
            self.sock = tls.wrap_socket(self.sock, server_side=True)
        except OSError as error:
            self._end("refused")
            raise PeerGoneError from error

    def request(self, *, read_writes: bool = True) -> Request:
        """Read one whole request; of a write only its head unless `read_writes`."""
        while b"\r\n\r\n" not in self._buffer:
            self._fill()
        head, _, rest = self._buffer.partition(b"\r\n\r\n")
        self._buffer = rest
        request = Request(head, b"")
        if request.line.startswith("POST /files") and not read_writes:
            self.requests.append(request)
            return request
        if request.header("transfer-encoding") == ["chunked"]:
            request.body = self._chunked()
        else:
            size = int((request.header("content-length") or ["0"])[0])
            while len(self._buffer) < size:
                self._fill()
            request.body, self._buffer = self._buffer[:size], self._buffer[size:]
        self.requests.append(request)
        return request

    def send(self, data: bytes) -> None:
        """Send everything, or raise `PeerGoneError`."""
        view = memoryview(data)
        try:
            while view:
                count = self.sock.send(view)
                self.sent_bytes += count
                view = view[count:]
        except OSError as error:
            self._end("rst")
            raise PeerGoneError from error

    def drip(self, data: bytes, every_s: float) -> None:
        """Send byte by byte, one each `every_s`, for as long as the client listens."""
        for index in range(len(data)):
            if self.wait_end(every_s):
                raise PeerGoneError
            self.send(data[index : index + 1])

    def wait_end(self, seconds: float = WAIT_S) -> bool:
        """Wait until the client closes; what it sends meanwhile is dropped."""
        if self.ended.is_set():
            return True
        self.sock.settimeout(seconds)
        try:
            while self.sock.recv(65536):
                pass
            self._end("fin")
        except TimeoutError:
            return False
        except OSError:
            self._end("rst")
        finally:
            with contextlib.suppress(OSError):
                self.sock.settimeout(WAIT_S)
        return True

    def idle(self) -> None:
        """Neither read nor send until the test is over."""
        self.peer.over.wait(WAIT_S)

    def close(self) -> None:
        """Send FIN: nothing more will come from here."""
        self.closed_by_us = True
        with contextlib.suppress(OSError):  # the client was faster
            socket.socket.shutdown(self.sock, socket.SHUT_WR)  # not SSLSocket's, which ends TLS

    def reset(self) -> None:
        """Send RST."""
        self.closed_by_us = True
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def _fill(self) -> None:
        try:
            data = self.sock.recv(262_144)
        except OSError as error:
            self._end("rst")
            raise PeerGoneError from error
        if not data:
            self._end("fin")
            raise PeerGoneError
        self._buffer += data

    def _chunked(self) -> bytes:
        body = b""
        while True:
            while b"\r\n" not in self._buffer:
                self._fill()
            size, _, self._buffer = self._buffer.partition(b"\r\n")
            count = int(size, 16) + 2
            while len(self._buffer) < count:
                self._fill()
            piece, self._buffer = self._buffer[: count - 2], self._buffer[count:]
            if not piece:
                return body
            body += piece

    def _end(self, how: str) -> None:
        self.end = self.end or how
        self.ended.set()


Script = Callable[[Talk], None]


class BadPeer:
    """The listener; use it with `with`.

    Args:
        script: What happens on a data-plane request: called with the `Talk` after the request
            was read. It is called again for the next request of the connection when it returns
            with the connection standing.
        unix: Path of a unix socket to listen on instead of loopback TCP.
        read_writes: Whether the body of a write is read before the script is called.
        tls: Context of a server that speaks TLS.

    Attributes:
        talks: Every connection that was accepted.
        failures: Exceptions of scripts; a test that ends well has none.
    """

    def __init__(
        self,
        script: Script,
        *,
        unix: Path | None = None,
        read_writes: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._script = script
        self._read_writes = read_writes
        self._tls = tls
        self.over = threading.Event()
        self.unix = unix
        self.talks: list[Talk] = []
        self.failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> BadPeer:
        if self.unix is None:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        else:
            self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._listener.bind(str(self.unix))
            self._listener.listen(128)
        self._start(self._accept)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._listener.close()
        for talk in self.talks:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(talk.sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a thread of the peer hangs"
        for talk in self.talks:
            talk.sock.close()
        if exc_info[0] is None and self.failures:
            raise self.failures[0]

    @property
    def url(self) -> str:
        """Base URL of both planes."""
        if self.unix is not None:
            return "http://localhost"
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def port(self) -> int:
        """Port on loopback."""
        return int(self._listener.getsockname()[1])

    @property
    def data_requests(self) -> list[Request]:
        """Every data-plane request, of all connections."""
        return [
            request for talk in self.talks for request in talk.requests if not _is_control(request)
        ]

    def data_talk(self, index: int = -1) -> Talk:
        """Return the connection of a data-plane request."""
        talks = [
            talk for talk in self.talks if any(not _is_control(item) for item in talk.requests)
        ]
        return talks[index]

    def _start(self, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(WAIT_S)
            talk = Talk(sock, self)
            self.talks.append(talk)
            self._start(lambda talk=talk: self._serve(talk))  # type: ignore[misc] # bound early

    def _serve(self, talk: Talk) -> None:
        try:
            if self._tls is not None:
                talk.secure(self._tls)
            while not talk.closed_by_us:
                request = talk.request(read_writes=self._read_writes)
                if _is_control(request):
                    talk.send(_control_answer(request))
                else:
                    self._script(talk)
            if talk.sock.fileno() >= 0:
                talk.wait_end()
        except PeerGoneError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again in the test's thread
            self.failures.append(error)


def _is_control(request: Request) -> bool:
    return "/v2/sandboxes" in request.line or " /sandboxes/" in request.line


def _control_answer(request: Request) -> bytes:
    if request.line.startswith("DELETE") or request.line.split()[1].endswith("/timeout"):
        return b"HTTP/1.1 204 No Content\r\n\r\n"
    if request.line.startswith("GET /v2/sandboxes"):
        times = {"startedAt": "2026-01-01T00:00:00Z", "endAt": "2099-01-01T00:00:00Z"}
        info = {"templateID": "base", "sandboxID": SANDBOX_ID, "state": "running", **times}
        return answer(json.dumps([info]).encode(), headers=b"Content-Type: application/json\r\n")
    body = json.dumps(
        {
            "templateID": "base",
            "sandboxID": SANDBOX_ID,
            "envdVersion": "0.6.4",
            "envdAccessToken": TOKEN,
        }
    ).encode()
    status = b"200 OK" if b"/connect" in request.head.split(b"\r\n")[0] else b"201 Created"
    return answer(body, status=status, headers=b"Content-Type: application/json\r\n")


def answer(
    body: bytes = b"",
    *,
    status: bytes = b"200 OK",
    headers: bytes = b"",
    length: int | None = None,
    version: bytes = b"HTTP/1.1",
) -> bytes:
    """Return a whole answer with Content-Length, right unless `length` says another one."""
    size = len(body) if length is None else length
    return b"%s %s\r\nContent-Length: %d\r\n%s\r\n%s" % (version, status, size, headers, body)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n", headers: bytes = b"") -> bytes:
    """Return a chunked answer with one chunk for each argument."""
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n%s\r\n%s%s" % (headers, body, end)
