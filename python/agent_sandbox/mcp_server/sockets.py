"""Listening sockets, and how this machine reaches them."""

from __future__ import annotations

import socket

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound to it here


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket for an address; port 0 lets the system choose one.

    Raises:
        OSError: The address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio switches Nagle's algorithm off on what it accepts; without,
    # each request with a body would wait 40 ms for a delayed acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
        listener.set_inheritable(False)
    except OSError:
        listener.close()
        raise
    return listener


def base_url(listener: socket.socket) -> str:
    """Return the base URL by which this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
