"""The one documented form of a remote path, decided without touching any file."""

from __future__ import annotations

from agent_sandbox.errors import PathError
from agent_sandbox.limits import MAX_COMPONENT_BYTES, MAX_PATH_BYTES


def canonical_path(path: str, *, directory: bool = False) -> str:
    """Return the canonical form of an absolute remote path, or refuse it.

    Canonical: one leading slash, no empty and no `.` components, no trailing slash. Nothing else
    is interpreted: `%2e`, a backslash, spaces and Unicode normal forms are literal.

    Args:
        path: Absolute, at most 4,096 UTF-8 bytes as given, no NUL, no `..` component, components
            of at most 255 bytes.
        directory: Whether the path may name a directory. Otherwise a path that only a directory
            can have (`/`, `/a/`, `/a/.`) is refused.

    Raises:
        PathError: E2002, for every path outside these rules.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8 form
        raise PathError from None
    if not path.startswith("/") or size > MAX_PATH_BYTES or "\0" in path:
        raise PathError
    given = path.split("/")
    if not directory and given[-1] in ("", "."):
        raise PathError
    names = [name for name in given if name not in ("", ".")]
    if any(name == ".." or len(name.encode()) > MAX_COMPONENT_BYTES for name in names):
        raise PathError
    return "/" + "/".join(names)
