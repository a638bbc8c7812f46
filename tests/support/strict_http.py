"""An application of a test's own under our HTTP protocol, in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from agent_sandbox.http1 import StrictHTTPProtocol


@contextmanager
def serving(app: Any, **settings: Any) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as port:
        config = uvicorn.Config(
            app, http=StrictHTTPProtocol, lifespan="off", log_config=None, **settings
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve([port])))
        thread.start()
        try:
            yield port.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
