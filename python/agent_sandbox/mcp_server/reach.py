"""A look at the sandbox service before a client comes: a mistake in an address shows at once."""

from __future__ import annotations

import os
import socket
import threading
from urllib.parse import urlsplit

from agent_sandbox.client.settings import Settings
from agent_sandbox.mcp_server.logs import log

_CONNECT_S = 3.0
_WAIT_S = 0.5
"""What the look may delay the start by; it goes on in the background after that."""


def warn_if_unreachable(settings: Settings) -> None:
    """Log a warning if nobody listens at the configured service; returns within half a second.

    The server starts all the same: the service may come up later.
    """
    if settings.api_url is not None:
        looking = threading.Thread(target=_look, args=(settings.api_url,), daemon=True)
        looking.start()
        looking.join(_WAIT_S)


def _look(url: str) -> None:
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except OSError as error:
        why = (
            "no such host" if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        )
        log.warning(
            "nobody answers at %s:%d, where the sandbox service should be (%s): tools will fail"
            " until it runs; check --api-url or AGENT_SANDBOX_API_URL",
            host,
            port,
            "it took too long" if isinstance(error, TimeoutError) else why,
        )
