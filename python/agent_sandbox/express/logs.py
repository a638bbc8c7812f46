"""Log lines of the service on standard error, JSON or text: nothing of a caller's in them."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from typing import Any, Literal

from agent_sandbox.errors import ConfigError

OWN = "agent_sandbox"

_PAUSE_S = 1.0

_CONSTANT_FIRST_LINE = frozenset({"uvicorn.error", "asyncio"})


Form = Literal["json", "text"]
"""One JSON object a line for programs, or a line of words for people."""


class _Line(logging.Formatter):
    """Writes what our own records say; of foreign records only what cannot hold anybody's data."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        line = self._fields(record)
        if self._form == "json":
            return json.dumps(line)
        words = [str(line.pop(name)) for name in ("time", "level", "message")]
        line.pop("logger")
        return " ".join([*words, *(f"{name}={value}" for name, value in line.items())])

    def _fields(self, record: logging.LogRecord) -> dict[str, Any]:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if record.name == OWN or record.name.startswith(OWN + "."):
            line["message"] = record.getMessage()
            line |= getattr(record, "fields", {})
        else:
            # Arguments, tracebacks and further lines may hold paths, tokens and contents. Other
            # libraries put those into the template itself (a parser: bytes of the body).
            constant = record.name in _CONSTANT_FIRST_LINE
            text = str(record.msg).partition("\n")[0][:100] if constant else "text withheld"
            line |= {"message": text, "place": f"{record.module}:{record.lineno}"}
        if record.exc_info and record.exc_info[0]:
            line["exception"] = record.exc_info[0].__name__
        return line


class _Seldom(logging.Filter):
    """Lets a foreign message through once a second: what a peer can cause may come in floods."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(OWN):
            return True
        place = (record.pathname, record.lineno)
        if record.created - self._last.get(place, 0.0) < _PAUSE_S:
            return False
        self._last[place] = record.created
        return True


LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


def configure_logging(default: str, form: Form = "json") -> None:
    """Send every record of this process to standard error in the service's form.

    For a process that the service owns; never called on import.

    Args:
        default: The level where `AGENT_SANDBOX_LOG_LEVEL` names none. Foreign loggers stay at
            WARNING.
        form: How a line looks.

    Raises:
        ConfigError: E6000: the variable holds something else.
    """
    level = (os.environ.get("AGENT_SANDBOX_LOG_LEVEL") or default).upper()
    if level not in LEVELS:
        raise ConfigError(reason="AGENT_SANDBOX_LOG_LEVEL is one of: " + ", ".join(LEVELS) + ".")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line(form))
    handler.addFilter(_Seldom())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OWN).setLevel(level)
    logging.captureWarnings(capture=True)
