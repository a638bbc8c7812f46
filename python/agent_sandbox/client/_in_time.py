"""A wall clock around blocking work that nothing else can stop."""

from __future__ import annotations

import contextlib
import contextvars
import socket
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from agent_sandbox.errors import AgentSandboxError
from agent_sandbox.limits import CLOSE_TIMEOUT_S

T = TypeVar("T")

GRACE_S = 0.25
"""Wait for a worker without a known socket: its client's own timeout strikes about now."""


class Rescue:
    """Ends the wait of a worker whose caller has gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._over = False

    def watch(self, response: Any) -> None:
        """Learn from a response's head which socket the rest comes from.

        Not on HTTP/2, where other calls share the socket: there a worker that is late ends at the
        next timeout of its client.
        """
        alone = str(response.http_version).startswith("HTTP/1")
        stream = response.extensions.get("network_stream") if alone else None
        found = stream.get_extra_info("socket") if stream is not None else None
        with self._lock:
            self._socket = found if isinstance(found, socket.socket) else None
            if self._over:
                self._cut()

    def end(self) -> None:
        """Declare that nothing more is read: from here on the result stands.

        Raises:
            TimeoutError: Time was over before.
        """
        with self._lock:
            self._socket = None
            if self._over:
                raise TimeoutError

    def stop(self) -> None:
        """Make the worker's wait fail, now or at its next step."""
        with self._lock:
            self._over = True
            self._cut()

    @property
    def cuts(self) -> bool:
        """Whether a socket is known, so that the worker ends at once."""
        return self._socket is not None

    def _cut(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # it is closed already
                # Not SSLSocket.shutdown, which drops the TLS state under its reader.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def in_time(work: Callable[[Rescue], T], seconds: float, late: type[AgentSandboxError]) -> T:
    """Return what `work` returns, or raise `late` when `seconds` are over.

    `work` runs in a thread of its own, with the caller's context variables. One that is late is
    stopped at its socket and has `CLOSE_TIMEOUT_S` to clean up; where no socket is known yet it
    ends by itself, at the next timeout of its client.
    """
    rescue = Rescue()
    done = threading.Event()
    result: list[T] = []
    error: list[BaseException] = []

    def run() -> None:
        try:
            result.append(work(rescue))
        except BaseException as failure:  # noqa: BLE001 - raised again, in the caller's thread
            error.append(failure)
        finally:
            done.set()

    context = contextvars.copy_context()
    worker = threading.Thread(target=context.run, args=(run,), daemon=True)
    worker.start()
    try:
        in_good_time = done.wait(seconds)
    except BaseException:
        rescue.stop()
        raise
    if not in_good_time:
        rescue.stop()
        done.wait(CLOSE_TIMEOUT_S if rescue.cuts else GRACE_S)
        raise late
    if error:
        raise error[0]
    return result[0]
