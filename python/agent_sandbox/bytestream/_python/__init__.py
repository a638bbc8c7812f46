"""The byte core on the standard library alone: slower than `_native`, and equal to it.

Names, results, exception types, texts and offsets are those of the native module for every
input; the tests run one suite over both.
"""

from agent_sandbox.bytestream._python.base64 import (
    b64decode,
    b64decode_sha256,
    b64encode,
    b64encode_sha256,
)
from agent_sandbox.bytestream._python.capped import CappedBytes
from agent_sandbox.bytestream._python.sha256 import Sha256

__all__ = [
    "CappedBytes",
    "Sha256",
    "b64decode",
    "b64decode_sha256",
    "b64encode",
    "b64encode_sha256",
]
