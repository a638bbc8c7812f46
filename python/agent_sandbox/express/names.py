"""Where a caller's path leads: E2B's relative forms, and names that Express keeps for itself."""

from __future__ import annotations

import re
import secrets

from agent_sandbox.errors import PathError
from agent_sandbox.paths import canonical_path

HOME = "/home/user"
"""Where relative paths and `~` begin, whoever the caller says to be."""

_KERNEL_PATH_BYTES = 4_095
"""PATH_MAX without its NUL. Refused here, so that no file is written under a path that cannot be
read: writing resolves directory and name apart, and would get one byte further."""

_TEMPORARY = re.compile(r"\.~agent-sandbox\.(?P<purpose>[nrx])\.[0-9a-f]{32}")


def absolute_path(path: str, *, directory: bool = False) -> str:
    """Return the canonical absolute form of a caller's path.

    `~`, `~/a` and relative paths begin at `/home/user`; all else follows
    `agent_sandbox.paths.canonical_path`, so `..` is refused.

    Raises:
        PathError: E2002.
    """
    if not path:
        raise PathError
    if path == "~":
        path = HOME
    elif path.startswith("~/"):
        path = HOME + path[1:]
    elif not path.startswith("/"):
        path = f"{HOME}/{path}"
    path = canonical_path(path, directory=directory)
    if len(path.encode()) > _KERNEL_PATH_BYTES:
        raise PathError
    return path


def temporary_name(purpose: str) -> str:
    """Return a fresh name that listings hide and watches translate.

    Args:
        purpose: `n` a new file in the making, `r` a replacement of one, `x` something on its way
            out.
    """
    return f".~agent-sandbox.{purpose}.{secrets.token_hex(16)}"


def temporary_purpose(name: str) -> str | None:
    """Return the purpose of a temporary name, None for every other name."""
    match = _TEMPORARY.fullmatch(name)
    return match["purpose"] if match else None


def readable(name: str) -> str:
    """Return a file name as Unicode text; bytes that are no UTF-8 become U+FFFD."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return name
