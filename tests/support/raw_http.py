"""A client that sends exactly the bytes it is given, and reads one answer after the other."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Answer:
    """One response.

    Attributes:
        status: Its code; 0 where the connection ended without a response.
        headers: Names in lower case; the last of equal names.
        body: As sent, chunks joined.
    """

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class RawClient:
    """One connection to a loopback port."""

    def __init__(self, port: int) -> None:
        self.opened = time.monotonic()  # before the server's clock can have started
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def send_unless_refused(self, data: bytes) -> None:
        """Send, and stop in silence where the server has closed already."""
        with contextlib.suppress(ConnectionError):
            self.sock.sendall(data)

    def finish_sending(self) -> None:
        self.sock.shutdown(socket.SHUT_WR)

    def reset(self) -> None:
        """Close with a reset instead of an orderly end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.sock.close()

    def answer(self, *, to_head: bool = False) -> Answer:
        """Read the next response, also an interim one."""
        head = self._until(b"\r\n\r\n")
        if not head:
            return Answer(0, {}, b"")
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        status = int(first.split(" ")[1])
        if to_head or status in (100, 204, 304):
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, self._chunks())
        if "content-length" in headers:
            return Answer(status, headers, self._exactly(int(headers["content-length"])))
        return Answer(status, headers, self.rest())

    def rest(self) -> bytes:
        """Read until the server says that nothing follows."""
        while self._more():
            pass
        read, self._read = self._read, b""
        return read

    def ends(self) -> float:
        """Wait until the server ends the connection; return the seconds since it was opened."""
        self.rest()
        return time.monotonic() - self.opened

    def _more(self) -> bool:
        try:
            data = self.sock.recv(65_536)
        except ConnectionError:
            return False
        self._read += data
        return bool(data)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            if not self._more():
                return b""
        at = self._read.index(mark) + len(mark)
        found, self._read = self._read[:at], self._read[at:]
        return found

    def _exactly(self, size: int) -> bytes:
        while len(self._read) < size and self._more():
            pass
        found, self._read = self._read[:size], self._read[size:]
        return found

    def _chunks(self) -> bytes:
        body = b""
        while size := int(self._until(b"\r\n") or b"0", 16):
            body += self._exactly(size)
            self._exactly(2)
        self._exactly(2)
        return body


def request(method: str, path: str, *lines: str | bytes, body: bytes = b"") -> bytes:
    """Return the bytes of a request; only `Host` is added, and nothing is checked."""
    head = [f"{method} {path} HTTP/1.1".encode(), b"Host: files.test"]
    head += [line if isinstance(line, bytes) else line.encode() for line in lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def exchange(port: int, data: bytes, *, to_head: bool = False) -> Answer:
    """Send these bytes on a new connection and return the answer."""
    with RawClient(port) as client:
        client.send_unless_refused(data)
        return client.answer(to_head=to_head)
