"""How this machine reaches its own listening sockets."""

from __future__ import annotations

import socket

_EVERY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound to it here


def base_url(listener: socket.socket) -> str:
    """Return the base URL by which this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    host = _EVERY_ADDRESS.get(host, host)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
