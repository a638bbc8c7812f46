"""What a request's head says about the request itself: its target and its end."""

from __future__ import annotations

import re
from urllib.parse import unquote

from starlette.types import Scope

_ABSOLUTE = re.compile(rb"https?://(?P<authority>[^/?#]*)(?P<path>.*)", re.IGNORECASE | re.DOTALL)


def to_origin_form(scope: Scope) -> None:
    """Turn an absolute target into path and host, as RFC 9112 section 3.2.2 has it.

    Its authority then stands in for the `Host` header.
    """
    match = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if match is None:
        return
    scope["raw_path"] = match["path"] or b"/"
    scope["path"] = unquote(scope["raw_path"].decode("ascii"))
    others = [(name, value) for name, value in scope["headers"] if name != b"host"]
    scope["headers"] = [(b"host", match["authority"]), *others]


def is_framed_once(scope: Scope) -> bool:
    """Return whether the head says in one way where the body ends.

    Otherwise another server on the way may see other requests in the same bytes, and the
    connection must be closed (RFC 9112 section 6.1).
    """
    names = {name for name, _ in scope["headers"]}
    if b"transfer-encoding" not in names:
        return True
    return b"content-length" not in names and scope["http_version"] != "1.0"
