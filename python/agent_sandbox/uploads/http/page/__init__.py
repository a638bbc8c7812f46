"""The page for people at an upload's address: one self-contained document, the same for any id."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files


def _read(name: str) -> str:
    return files(__name__).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


_STYLE = _read("page.css")
_SCRIPT = '"use strict";\n' + "\n".join(_read(n) for n in ("sha256.js", "texts.js", "page.js"))

PAGE = (
    _read("page.html")
    .replace("/*STYLE*/", _STYLE, 1)
    .replace("/*SCRIPT*/", _SCRIPT, 1)
    .encode("utf-8")
)
"""The document. It holds nothing about the upload: the page reads its own address."""

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        f"script-src {_hash(_SCRIPT)}",
        f"style-src {_hash(_STYLE)}",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Only this very script and style run, and they talk to their own origin alone."""
