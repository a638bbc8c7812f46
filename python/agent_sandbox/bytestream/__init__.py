"""The byte core: strict Base64, sha256 and bounded accumulation, each in one pass.

Two implementations with the same names, results and errors: `native` (Rust) and `python`
(standard library). The native one runs unless it is not installed or
`AGENT_SANDBOX_PURE_PYTHON=1` is set when this module is first imported. A native module that is
there and does not load is an error: falling back would hide a broken installation.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Final, Literal

from agent_sandbox.errors import Base64Error, SizeLimitError

__all__ = [
    "IMPLEMENTATION",
    "Base64Error",
    "CappedBytes",
    "Sha256",
    "SizeLimitError",
    "b64decode",
    "b64decode_sha256",
    "b64encode",
    "b64encode_sha256",
]


def _native_is_missing() -> bool:
    if os.environ.get("AGENT_SANDBOX_PURE_PYTHON") == "1":
        return True
    try:
        importlib.import_module(f"{__name__}._native")
    except ModuleNotFoundError as error:
        # A module that _native itself fails to find is a fault of _native, not its absence.
        if error.name != f"{__name__}._native":
            raise
        return True
    return False


IMPLEMENTATION: Final[Literal["native", "python"]] = "python" if _native_is_missing() else "native"
"""Which implementation runs in this process."""

if TYPE_CHECKING or IMPLEMENTATION == "python":
    from agent_sandbox.bytestream._python import (
        CappedBytes,
        Sha256,
        b64decode,
        b64decode_sha256,
        b64encode,
        b64encode_sha256,
    )
else:
    from agent_sandbox.bytestream._native import (
        CappedBytes,
        Sha256,
        b64decode,
        b64decode_sha256,
        b64encode,
        b64encode_sha256,
    )
