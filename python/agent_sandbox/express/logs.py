"""Log lines of the service: one line of JSON on standard error, nothing of a caller's in it."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

OWN = "agent_sandbox"


class _Line(logging.Formatter):
    """Writes what our own records say; of foreign records only what cannot hold anybody's data."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if record.name == OWN or record.name.startswith(OWN + "."):
            line["message"] = record.getMessage()
            line |= getattr(record, "fields", {})
        else:
            # Arguments, tracebacks and further lines may hold paths, tokens and contents: the
            # first line of the template is a constant in uvicorn, asyncio and the parsers.
            line["message"] = str(record.msg).partition("\n")[0][:100]
        if record.exc_info and record.exc_info[0]:
            line["exception"] = record.exc_info[0].__name__
        return json.dumps(line)


def configure_logging(level: str) -> None:
    """Send every record of this process to standard error in the service's form.

    For a process that the service owns; never called on import.

    Args:
        level: A level's name. Foreign loggers stay at WARNING.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger(OWN).setLevel(level)
    logging.captureWarnings(capture=True)
