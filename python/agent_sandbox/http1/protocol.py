"""Our HTTP/1.1 protocol for uvicorn: strict heads, deadlines, and a close that is heard.

`uvicorn.Config(app, http=StrictHTTPProtocol)`. uvicorn keeps the sockets, signals and lifespan;
this class replaces its h11 and httptools protocols, which let doubtful framing through, keep a
silent or dripping connection open for ever, and close so that a client still sending gets a reset
instead of the answer. Body bytes go to the application as the socket gave them, without a copy.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from uvicorn.config import Config
from uvicorn.server import ServerState

from agent_sandbox.errors import (
    AgentSandboxError,
    InvalidInputError,
    TransferTimeoutError,
    UploadBusyError,
)
from agent_sandbox.http1.crowd import Crowd, crowd_of
from agent_sandbox.http1.cycle import Cycle
from agent_sandbox.http1.fill import FILL, Filler
from agent_sandbox.http1.head import MAX_TARGET_BYTES, Head, HeadError, find_end, parse
from agent_sandbox.http1.stall import Stall

HEADER_DEADLINE_S = 10.0
"""Time for a whole request head, counted from the connection or from its first byte."""

LINGER_S = 2.0
"""Longest time in which a closing connection still reads and drops what the peer sends."""

WRITE_IDLE_S = 10.0
"""Time after which a closing connection is cut when the peer takes nothing of its answer."""

LINGER_MAX_BYTES = 64 * 1_048_576
"""Most bytes that a closing connection drops before it is cut."""

READ_BYTES = 512 << 10
"""Most bytes to take from the socket at once: a fast body costs fewer turns of the loop."""

STALL_S = 120.0
"""A peer that takes next to nothing of an answer for so long is given up."""

MOST_CONNECTIONS = 4_096
"""Connections of one server; each takes some 4 KB."""

DESCRIPTORS_SHARE = 0.5
"""The part of the descriptors that connections take: a call needs one or two of its own."""

ACCEPTS = 16
"""As `backlog` of `create_server`: connections that asyncio accepts before any of them is counted
(and how often in one go CPython 3.11 tries to, without descriptors). The kernel's queue may be
longer: call `listen` afterwards."""

STRICT = "agent_sandbox.strict"
"""Key of `scope["extensions"]` that says to the application that this protocol serves it."""

_CODES: dict[int, type[AgentSandboxError]] = {
    408: TransferTimeoutError,
    500: AgentSandboxError,
    503: UploadBusyError,
}
_REFUSAL = b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
_REFUSAL += b"agent-sandbox-error: %b\r\ncache-control: no-store\r\nconnection: close\r\n\r\n%b"


class StrictHTTPProtocol(asyncio.Protocol):
    """One connection; requests on it are served one after the other.

    Deadlines run on the loop's monotonic clock. The connections of one server are bounded: see
    `Crowd`. Class attributes are the settings: make a subclass to change them.
    """

    header_deadline_s: float = HEADER_DEADLINE_S
    linger_s: float = LINGER_S
    linger_max_bytes: int = LINGER_MAX_BYTES
    write_idle_s: float = WRITE_IDLE_S
    max_target_bytes: int = MAX_TARGET_BYTES
    stall_s: float = STALL_S
    most_connections: int = MOST_CONNECTIONS
    descriptors_share: float = DESCRIPTORS_SHARE

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        if not config.loaded:
            config.load()
        self.config = config
        self.server_state = server_state
        self.app_state = app_state
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._crowd: Crowd = cast(Crowd, None)
        self._stall: Stall = cast(Stall, None)
        self.cycle: Cycle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._lingered: int | None = None  # bytes dropped so far, once the connection is closing
        self._shutting_down = False
        self._eof = False
        self._unsent = 0  # bytes of the last answer that the peer had not taken when last seen

    # --- what asyncio calls ---------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the deadline of the first head."""
        self.transport = cast(asyncio.Transport, transport)
        if hasattr(transport, "max_size"):  # asyncio's own; other loops have theirs
            transport.max_size = READ_BYTES
        self.server_state.connections.add(cast(Any, self))
        self._stall = Stall(self.transport, self.loop)
        self._arm(self.header_deadline_s)
        self._crowd = crowd_of(self.server_state, self.descriptors_share, self.most_connections)
        self._crowd.enter(self, transport.get_extra_info("peername"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the application that the peer is gone."""
        self.server_state.connections.discard(cast(Any, self))
        self._crowd.leave(self)
        self._stall.end()
        self._disarm()
        self._buffer.clear()
        self._writable.set()
        if self.cycle is not None:
            self.cycle.disconnect()

    def data_received(self, data: bytes) -> None:
        """Read a head, feed a body, or drop what comes after the end."""
        if self._lingered is not None:
            self._lingered += len(data)
            if self._lingered > self.linger_max_bytes:
                self.transport.abort()
        elif self.cycle is not None:
            self._buffer += self.cycle.feed(data)
            if self._buffer:  # the next request waits until this one is answered
                self.transport.pause_reading()
        else:
            if not self._buffer:
                self._arm(self.header_deadline_s)
            self._buffer += data
            self._read_head()

    def eof_received(self) -> bool:
        """Keep the connection for the answer when a request is in flight."""
        self._eof = True
        if self.cycle is None:
            return False  # asyncio closes the transport
        # The peer may have closed for writing only, and still wait for its answer.
        self._nothing_follows()
        return self.transport.can_write_eof()  # TLS has no half of a close (RFC 8446 6.1)

    def pause_writing(self) -> None:
        """Let the application wait: the peer does not read."""
        self._writable.clear()
        self._stall.begin(self.stall_s)

    def resume_writing(self) -> None:
        """Let the application go on."""
        self._writable.set()
        self._stall.end()

    def make_room(self) -> None:
        """End at once, for another connection (called by `Crowd`)."""
        self.transport.abort()

    def shutdown(self) -> None:
        """Close as soon as the request in flight, if any, is answered (called by uvicorn)."""
        self._shutting_down = True
        if self.cycle is None:
            self.transport.close()

    # --- requests -------------------------------------------------------------------------

    def _read_head(self) -> None:
        try:
            size = find_end(self._buffer)
            if size < 0:
                return
            head = parse(bytes(self._buffer[:size]), max_target_bytes=self.max_target_bytes)
        except HeadError as error:
            self._refuse(error.status)
            return
        rest = bytes(self._buffer[size:])
        self._buffer.clear()
        self._disarm()
        self._start(head)
        if rest:
            self.data_received(rest)

    def _start(self, head: Head) -> None:
        cycle = self.cycle = Cycle(
            head,
            self._scope(head),
            self.transport,
            self._writable,
            self.server_state.default_headers,
            self._done,
            partial(self._answer, 500),
        )
        if head.framing.content_length:
            cycle.scope["extensions"][FILL] = {"filler": Filler(self, self.transport, cycle)}
        app = cast(Any, self.config.loaded_app)
        limit = self.config.limit_concurrency
        if limit is not None and len(self.server_state.tasks) >= limit:
            self._refuse(503)
            return
        self._crowd.serve(self)
        task = self.loop.create_task(cycle.run(app))
        self.server_state.tasks.add(task)
        task.add_done_callback(self.server_state.tasks.discard)

    def _scope(self, head: Head) -> dict[str, Any]:
        info = self.transport.get_extra_info
        root_path = self.config.root_path
        path = unquote_to_bytes(head.path).decode("utf-8", "replace")
        return {
            "type": "http",
            "asgi": {"version": self.config.asgi_version, "spec_version": "2.3"},
            "http_version": head.http_version,
            "server": _address(info("sockname")),
            "client": _address(info("peername")),
            "scheme": "https" if info("sslcontext") else "http",
            "method": head.method,
            "root_path": root_path,
            "path": root_path + path,
            "raw_path": root_path.encode() + head.path,
            "query_string": head.query,
            "headers": head.headers,
            "state": self.app_state.copy(),
            "extensions": {STRICT: {}},
        }

    def _done(self, *, reusable: bool, body_read: bool) -> None:
        self.server_state.total_requests += 1
        self.cycle = None
        self._crowd.wait(self)
        if self.transport.is_closing():
            return
        if not reusable or self._shutting_down or (self._eof and not self._buffer):
            self._close(linger=not body_read)
            return
        self.transport.resume_reading()
        if self._buffer:
            self._arm(self.header_deadline_s)
            self._read_head()
            if self._eof:
                self._nothing_follows()
        else:
            self._arm(self.config.timeout_keep_alive)

    def _nothing_follows(self) -> None:
        """Tell a request that was sent whole before the peer's end that no more of it can come."""
        if self.cycle is not None:
            self.cycle.disconnect_after_body()
        elif self._lingered is None:  # a head without its end
            self._close(linger=False)

    # --- the ends -------------------------------------------------------------------------

    def refusal(self, status: int, phrase: str, code: str) -> bytes:
        """Return the JSON of an answer that no application gives: a refused head, a failure."""
        return json.dumps({"error": phrase, "code": code}).encode()

    def _refuse(self, status: int) -> None:
        self.cycle = None
        self.transport.write(self._answer(status))
        self._close(linger=True)

    def _answer(self, status: int) -> bytes:
        """Return a whole answer of this protocol's own, after which the connection is closed."""
        code = _CODES.get(status, InvalidInputError).code
        phrase = HTTPStatus(status).phrase
        body = self.refusal(status, phrase, code)
        return _REFUSAL % (status, phrase.encode(), len(body), code.encode(), body)

    def _close(self, *, linger: bool) -> None:
        """Send what is written and say that nothing follows; with `linger`, read on for a while.

        A close with unread input would make the kernel send a reset, which destroys the answer
        on its way (RFC 9112 section 9.6).
        """
        self._buffer.clear()
        self._lingered = 0
        if linger and not self._eof and self.transport.can_write_eof():
            try:
                self.transport.write_eof()
            except OSError:  # the peer has reset the connection, and nobody has told us yet
                self.transport.abort()
                return
            self.transport.resume_reading()
            self._arm(self.linger_s)
        else:
            self.transport.close()
            self._unsent = self.transport.get_write_buffer_size()
            self._arm(self.write_idle_s)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._expired)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expired(self) -> None:
        if self._lingered is not None:
            unsent = self.transport.get_write_buffer_size()
            if 0 < unsent < self._unsent:  # the peer still reads its answer
                self._unsent = unsent
                self._arm(self.write_idle_s)
            else:
                self.transport.abort()
        elif self._buffer:
            self._refuse(408)
        else:
            self._close(linger=False)


def _address(name: Any) -> tuple[str, int | None] | None:
    if isinstance(name, tuple):
        return str(name[0]), int(name[1])
    return (name, None) if isinstance(name, str) and name else None
