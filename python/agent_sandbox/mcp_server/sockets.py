"""Listening sockets, and how this machine reaches them."""

from __future__ import annotations

import socket

from agent_sandbox.express.address import listen

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound to it here


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a listening socket for an address; port 0 lets the system choose one.

    Raises:
        ConfigError: E6000, with a `reason` that names the address and the way out.
    """
    return listen(host, port)


def base_url(listener: socket.socket) -> str:
    """Return the base URL by which this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
