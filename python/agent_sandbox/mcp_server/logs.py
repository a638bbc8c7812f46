"""Logs that hold ids of errors and places in code, and nothing of what callers sent.

Libraries below this server log session ids, Host and Origin headers, URLs with paths, request
headers with tokens, and tracebacks whose exceptions carry input. Their messages are therefore
never passed on: a record of theirs becomes its place, its level and the kind of its exception.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import sys
import time
import uuid
from typing import Any

from agent_sandbox.errors import AgentSandboxError, AuthenticationError, SandboxUnavailableError

log = logging.getLogger("agent_sandbox.mcp_server")

SDK_LOGGERS = ("mcp", "mcp_types", "sse_starlette", "httpx2", "httpcore2")
"""Roots of the logger trees below this server that carry ids, paths or tokens."""

PROCESS_LOGGERS = ("uvicorn", "httpx", "httpcore")
"""Further ones, cut only in a process that is ours alone."""


SCARCE_PAUSE_S = 10.0
"""Shortest time between two records about descriptors or memory that the system has not got."""

SAME_PAUSE_S = 10.0
"""The same between two records of one place in a library: callers can bring some of them about."""

_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class RedactingHandler(logging.Handler):
    """Replaces the records of a library by ones that hold nothing of their messages.

    What one place repeats is counted, and told with its next record.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int, str], tuple[float, int]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Log the place, the level and the kind of exception, on this package's own logger."""
        kind = (
            record.exc_info[0].__name__
            if record.exc_info and record.exc_info[0]
            else "no exception"
        )
        place, now = (record.name, record.lineno, kind), time.monotonic()
        logged_at, repeated = self._last.get(place, (float("-inf"), 0))
        if now - logged_at < SAME_PAUSE_S:
            self._last[place] = logged_at, repeated + 1
            return
        self._last[place] = now, 0
        log.log(
            record.levelno,
            "%s reported something at line %d (%s)%s; its text is withheld",
            *place,
            f", and {repeated} times before" if repeated else "",
        )


def redact_libraries(*names: str) -> None:
    """Set the loggers of libraries to WARNING and cut their texts out. Idempotent.

    The root logger is not touched, nor any handler that a program has put on it.
    """
    for name in names:
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        if not any(isinstance(handler, RedactingHandler) for handler in logger.handlers):
            logger.handlers[:] = [RedactingHandler()]


def log_unexpected(where: str, error: BaseException) -> None:
    """Log an exception that no table knows: an id, the place it was raised, its type. No text."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "unknown place"
    log.error("error %s in %s: %s at %s", uuid.uuid4().hex[:12], where, type(error).__name__, place)


def log_unavailable(error: AgentSandboxError) -> None:
    """Log that there is no sandbox service: who can mend that sees the log and not the result."""
    if isinstance(error, SandboxUnavailableError | AuthenticationError):
        reason = getattr(error, "reason", "See --provider, --api-url and AGENT_SANDBOX_API_URL.")
        log.error("%s %s %s", error.code, error.text, reason)


class LoopErrors:
    """Logs what nobody awaited, as the exception handler of a loop: its kind, and no text.

    asyncio's own handler prints messages and reprs. An `InvalidStateError` is no fault: anyio lets
    the loop settle the future of a read that was cancelled in the same turn. asyncio reports a
    connection for which there is no descriptor thousands of times a second.
    """

    def __init__(self) -> None:
        self._scarce_at = float("-inf")

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log one report of the loop."""
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in _SCARCE:
            self._log_scarcity(error.errno)
        elif error is None:
            log.error("the event loop reported something; its text is withheld")
        elif not isinstance(error, asyncio.InvalidStateError):
            log_unexpected("the event loop", error)

    def _log_scarcity(self, number: int) -> None:
        now = time.monotonic()
        if now - self._scarce_at >= SCARCE_PAUSE_S:
            self._scarce_at = now
            name = errno.errorcode[number]
            log.error("connections wait: the system has no descriptor or memory (%s)", name)


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Show this package's log on standard error, for the programs that this package starts."""
    logger = logging.getLogger("agent_sandbox")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)
