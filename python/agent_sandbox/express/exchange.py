"""What passes between a caller and the application, counted."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import Message, Receive, Scope, Send

from agent_sandbox.express.tally import Served

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Exchange:
    """One request and its answer, as they pass by.

    Args:
        scope: Of the request.
        receive: What the server gave.
        send: What the server gave.
        closes: Whether the connection is to be closed after the answer; asked when that begins.

    Attributes:
        status: Of the answer; 0 until it begins.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, *, closes: Callable[[], bool]
    ) -> None:
        self._scope, self._receive, self._send, self._closes = scope, receive, send, closes
        self._started = time.perf_counter()
        self._head_s: float | None = None
        self._received_bytes = self._sent_bytes = 0
        self.status = 0

    def seconds(self) -> float:
        """Return how long it has taken until now."""
        return time.perf_counter() - self._started

    async def receive(self) -> Message:
        """Receive, and count."""
        message = await self._receive()
        self._received_bytes += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Send, and count."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._head_s = self.seconds()
            if self._closes():
                lines = [*message.get("headers", ()), (b"connection", b"close")]
                message = {**message, "headers": lines}
        else:
            self._sent_bytes += len(message.get("body", b""))
        await self._send(message)

    def served(self, code: str) -> Served:
        """Return what happened; `code` is that of the error that was answered, or empty."""
        method = self._scope["method"]
        return Served(
            method=method if method in _METHODS else "other",
            route=self._scope.get("agent_sandbox.route", "none"),
            status=self.status,
            code=code,
            head_s=self._head_s,
            received_bytes=self._received_bytes,
            sent_bytes=self._sent_bytes,
        )
