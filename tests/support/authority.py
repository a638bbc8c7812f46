"""A TLS side for raw test peers: an authority of our own, and a proxy that tunnels (CONNECT)."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from pathlib import Path

import trustme
from tests.support.bad_peer import WAIT_S

NAME = "sandboxes.example"
"""A host that no proxy is bypassed for; only a `Tunnel` leads there."""


class Authority:
    """A certificate authority that nobody else trusts.

    Attributes:
        server: Context of a server on loopback, or of `NAME`.
        client: Context of a client that trusts it.
        pem: Its certificate, for `SSL_CERT_FILE`.
    """

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1", "localhost", NAME).configure_cert(self.server)
        self.client = ssl.create_default_context()
        authority.configure_trust(self.client)
        self.pem = folder / "authority.pem"
        authority.cert_pem.write_to_path(str(self.pem))


class Tunnel:
    """A proxy on loopback that leads every CONNECT to one port, by TLS of its own if wanted.

    Attributes:
        asked: The first line of each request.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port, self._tls = port, tls
        self.asked: list[str] = []
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Tunnel:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)
        return self

    def __exit__(self, *exc_info: object) -> None:
        for sock in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        for sock in (self._listener, *self._sockets):
            sock.close()

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://localhost:{self._listener.getsockname()[1]}"

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type] # a function of its arguments
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.settimeout(WAIT_S)
                self._sockets.append(sock)
                self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True)
                self._sockets.append(sock)
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += sock.recv(1)
            self.asked.append(head.split(b"\r\n")[0].decode())
            there = socket.create_connection(("127.0.0.1", self._port), WAIT_S)
            self._sockets.append(there)
            sock.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            self._start(self._pump, there, sock)
            self._pump(sock, there)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
