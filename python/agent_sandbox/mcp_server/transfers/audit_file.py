"""The audit log of upload sessions as a file: one line for every change."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

_AUDIT = "agent_sandbox.uploads.audit"


@contextmanager
def audit_file(path: str) -> Iterator[None]:
    """Append the audit log to a file of mode 0600 while the block runs.

    Raises:
        OSError: The file cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags, 0o600), "a", encoding="utf-8") as file:
        handler = logging.StreamHandler(file)
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
