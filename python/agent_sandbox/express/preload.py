"""Importing early what libraries import late: after the drop of privileges nothing is imported.

A test serves every route with imports refused, and names what is missing here.
"""

from __future__ import annotations

import codecs
import importlib

_MODULES = (
    "anyio._backends._asyncio",
    "concurrent.futures.thread",
    "email.utils",
    "encodings.idna",
    "encodings.punycode",
    "linecache",
    "stringprep",
    "traceback",
    "unicodedata",
    "uvicorn.lifespan.off",
    "uvicorn.loops.asyncio",
)

_CODECS = ("ascii", "latin-1", "utf-8", "idna", "unicode_escape", "raw_unicode_escape")


def load() -> None:
    """Import everything that serving may need."""
    for module in _MODULES:
        importlib.import_module(module)
    for codec in _CODECS:
        codecs.lookup(codec)
