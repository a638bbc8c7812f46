"""A small file that an operator edits while the server runs."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from agent_sandbox.errors import ConfigError
from agent_sandbox.mcp_server.logs import log

T = TypeVar("T")

MAX_BYTES = 1_048_576

SETTLED_S = 1.0
"""A file changed more recently than this is read again: a second change may show no other time."""

_Signature = tuple[int, int, int, int, int]


def entries(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that say something, stripped, with their numbers from 1 on.

    Blank lines and lines that begin with `#` are passed over.
    """
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if line and not line.startswith("#"):
            yield number, line


class WatchedFile(Generic[T]):
    """The value of a file, read again whenever the file has changed.

    Each look costs one `stat`. Not thread-safe.

    Args:
        path: The file.
        what: What it is, for messages, with its option; its path is never told.
        parse: Makes the value; returns with it the numbers of the lines that are none.
    """

    def __init__(self, path: Path, what: str, parse: Callable[[str], tuple[T, list[int]]]) -> None:
        self._path = path
        self._what = what
        self._parse = parse
        self._signature: _Signature | None = None
        self._read_at = 0.0
        self._value: T | None = None
        self._complaint: str | None = None

    def start(self) -> T:
        """Return the value, or say what is wrong with the file.

        Raises:
            ConfigError: E6000, with a `reason`: it cannot be read, others may write in it, or a
                line is not what it must be.
        """
        value, complaint = self._load()
        if value is None or complaint is not None:
            raise ConfigError(reason=complaint or f"The {self._what} cannot be read.")
        return value

    def look(self) -> T | None:
        """Return the value as the file is now; None where it cannot be used at all.

        A line that is wrong is passed over. Each new complaint is logged once.
        """
        value, complaint = self._load()
        if complaint != self._complaint:
            self._complaint = complaint
            if complaint is not None:
                log.error("%s", complaint)
        return value

    def _load(self) -> tuple[T | None, str | None]:
        try:
            signature, changed_at = _look_at(os.stat(self._path))
            settled = self._read_at - changed_at > SETTLED_S
            if signature == self._signature and settled:
                return self._value, self._complaint
            self._read_at = time.time()
            text = self._read()
        except (OSError, UnicodeDecodeError):
            return self._nothing(f"The {self._what} cannot be read.")
        except _UnsafeError:
            return self._nothing(
                f"The {self._what} must be a regular file of at most 1 MiB that nobody but its"
                " owner may write in (chmod go-w), and that is yours or root's."
            )
        self._signature = signature
        self._value, wrong = self._parse(text)
        complaint = f"Line {wrong[0]} of the {self._what} is not understood." if wrong else None
        return self._value, complaint

    def _nothing(self, complaint: str) -> tuple[None, str]:
        self._signature = self._value = None
        return None, complaint

    def _read(self) -> str:
        # Without waiting: a FIFO in the file's place must not hold the server up.
        with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            if (
                not stat.S_ISREG(found.st_mode)
                or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
                or found.st_uid not in (0, os.geteuid())
            ):
                raise _UnsafeError
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _UnsafeError
        return data.decode()


class _UnsafeError(Exception):
    """The file is not one to take rights from."""


def _look_at(found: os.stat_result) -> tuple[_Signature, float]:
    signature = (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
    )
    return signature, max(found.st_mtime, found.st_ctime)
