"""The audit log of upload sessions as a file: one line for every change."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

_AUDIT = "agent_sandbox.uploads.audit"
_log = logging.getLogger(__name__)


class _LineHandler(logging.Handler):
    """Writes each record at once and whole: nothing waits in a buffer for a disk that is full."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._cut = False  # the file ends in the middle of a line
        self._told = False

    def emit(self, record: logging.LogRecord) -> None:
        """Append one line. Where that fails, say so once until it works again."""
        line = f"{self.format(record)}\n".encode()
        if self._cut:
            line = b"\n" + line
        try:
            written = os.write(self._descriptor, line)
        except OSError as error:
            self._tell(errno.errorcode.get(error.errno or 0, "OSError"))
            return
        self._cut = written < len(line) and (self._cut or written > 0)
        if written < len(line):
            self._tell("a short write")
        else:
            self._told = False

    def _tell(self, reason: str) -> None:
        if not self._told:
            self._told = True
            _log.error("the audit file of uploads cannot be written (%s)", reason)


@contextmanager
def audit_file(path: str) -> Iterator[None]:
    """Append the audit log to a file of mode 0600 while the block runs.

    A file that cannot be written any more stops no transfer: it lacks lines then, and the error
    log says so.

    Raises:
        OSError: The file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    handler = _LineHandler(descriptor)
    form = logging.Formatter("%(asctime)sZ %(message)s", "%Y-%m-%dT%H:%M:%S")
    form.converter = time.gmtime
    handler.setFormatter(form)
    logger = logging.getLogger(_AUDIT)
    before = logger.level, logger.propagate
    logger.setLevel(logging.INFO)
    logger.propagate = False  # standard error is for what goes wrong
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
        with contextlib.suppress(OSError):
            os.close(descriptor)
