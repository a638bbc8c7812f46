"""A blocking transport that keeps one absolute deadline through every wait of a call.

httpx's timeouts are per wait: a peer that sends a byte now and then is never late. This transport
asks the clock of the running thread before every wait, in the head and in the body, on new and on
reused connections.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import httpcore2
import httpx2

_clock = threading.local()


@contextlib.contextmanager
def until(at: float | None) -> Generator[None]:
    """Let this thread's waits fail at `at`, a time of `time.monotonic`; None is no deadline."""
    before: float | None = getattr(_clock, "at", None)
    _clock.at = at
    try:
        yield
    finally:
        _clock.at = before


def _left(timeout: float | None, late: type[httpcore2.TimeoutException]) -> float | None:
    at: float | None = getattr(_clock, "at", None)
    if at is None:
        return timeout
    left = at - time.monotonic()
    if left <= 0:
        raise late
    return left if timeout is None else min(left, timeout)


class _Stream(httpcore2.NetworkStream):
    def __init__(self, inner: httpcore2.NetworkStream, *, nested: bool = False) -> None:
        self._inner = inner
        # TLS inside TLS has no socket of its own: httpcore2 does it through objects in memory.
        self._socket: socket.socket | None = None if nested else inner.get_extra_info("socket")

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._socket is None:
            self._inner.write(buffer, _left(timeout, httpcore2.WriteTimeout))
            return
        view = memoryview(buffer)
        try:
            while view:
                # Before every send: a peer that reads drop by drop lets each one make progress.
                self._socket.settimeout(_left(timeout, httpcore2.WriteTimeout))
                view = view[self._socket.send(view) :]
        except TimeoutError:
            raise httpcore2.WriteTimeout from None
        except OSError:
            raise httpcore2.WriteError from None

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore2.NetworkStream:
        left = _left(timeout, httpcore2.ConnectTimeout)
        nested = isinstance(self._socket, ssl.SSLSocket)
        inner = self._inner.start_tls(ssl_context, server_hostname, left)
        return _Stream(inner, nested=nested)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _UnixStream(httpcore2.NetworkStream):
    """A connected unix socket; httpcore2's own leaks the socket of a connect that fails."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        try:
            self._socket.settimeout(timeout)
            return self._socket.recv(max_bytes)
        except TimeoutError:
            raise httpcore2.ReadTimeout from None
        except OSError:
            raise httpcore2.ReadError from None

    def close(self) -> None:
        self._socket.close()

    def get_extra_info(self, info: str) -> Any:
        if info == "socket":
            return self._socket
        if info == "is_readable":  # an idle connection that can be read has been closed
            if self._socket.fileno() < 0:
                return True
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            return bool(poll.poll(0))
        return None


def _addresses(host: str, port: int) -> list[str]:
    """Return the numeric addresses of a host; the look-up itself cannot be stopped."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        # By `getnameinfo`, which keeps the scope of a link-local address.
        flags = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        return [socket.getnameinfo(info[4], flags)[0] for info in found]
    except (OSError, UnicodeError):
        raise httpcore2.ConnectError from None


class _Backend(httpcore2.NetworkBackend):
    def __init__(self) -> None:
        self._inner = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        ends_at = None if timeout is None else time.monotonic() + timeout
        addresses = _addresses(host, port)
        for tries_left in range(len(addresses), 0, -1):
            left = None if ends_at is None else ends_at - time.monotonic()
            if left is not None and left <= 0:
                raise httpcore2.ConnectTimeout
            left = _left(left, httpcore2.ConnectTimeout)
            # What is left is shared out, so that one silent address does not hide the next.
            share = None if left is None else left / tries_left
            try:
                stream = self._inner.connect_tcp(
                    addresses[-tries_left], port, share, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                if tries_left == 1:
                    raise
            else:
                return _Stream(stream)
        raise httpcore2.ConnectError

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.NetworkStream:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(_left(timeout, httpcore2.ConnectTimeout))
            for option in UNIX_SOCKET_OPTIONS:
                sock.setsockopt(*option)
            sock.connect(path)
        except BaseException as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise httpcore2.ConnectTimeout from None
            if isinstance(error, OSError):
                raise httpcore2.ConnectError from None
            raise
        return _Stream(_UnixStream(sock))


UNIX_SOCKET_OPTIONS = ((socket.SOL_SOCKET, socket.SO_SNDBUF, 2 << 20),)
"""A write of 1 MiB fits whole, and is not handed over in many small steps."""


class _Body(httpx2.SyncByteStream):
    def __init__(self, stream: Any) -> None:
        # Named as in httpx2's own transport, so that `has_leftover` finds its way through both.
        self._httpcore_stream = stream

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._httpcore_stream)

    def close(self) -> None:
        self._httpcore_stream.close()


class DeadlineTransport(httpx2.BaseTransport):
    """A pool of HTTP/1.1 connections whose waits end at the deadline of `until`.

    Args:
        uds: Unix socket to connect to, whatever the URL says.
        proxy: URL of a proxy, or None.
        max_connections: Size of the pool.
    """

    def __init__(
        self, *, uds: str | None = None, proxy: str | None = None, max_connections: int = 100
    ) -> None:
        options: dict[str, Any] = {
            "network_backend": _Backend(),
            "max_connections": max_connections,
            "max_keepalive_connections": 20,
            "keepalive_expiry": 5.0,
        }
        self._pool: httpcore2.ConnectionPool
        if proxy is None:
            self._pool = httpcore2.ConnectionPool(uds=uds, **options)
        else:
            parsed = httpx2.Proxy(proxy)
            url = httpcore2.URL(
                scheme=parsed.url.raw_scheme,
                host=parsed.url.raw_host,
                port=parsed.url.port,
                target=parsed.url.raw_path,
            )
            kind = (
                httpcore2.SOCKSProxy
                if parsed.url.scheme.startswith("socks5")
                else httpcore2.HTTPProxy
            )
            self._pool = kind(url, proxy_auth=parsed.raw_auth, **options)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; faults are those of httpcore2."""
        answer = self._pool.handle_request(
            httpcore2.Request(
                method=request.method,
                url=httpcore2.URL(
                    scheme=request.url.raw_scheme,
                    host=request.url.raw_host,
                    port=request.url.port,
                    target=request.url.raw_path,
                ),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        return httpx2.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        """Close every connection of the pool."""
        self._pool.close()
