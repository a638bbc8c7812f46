"""What a creator may declare, checked before anything is issued."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import replace
from pathlib import PurePosixPath

from agent_sandbox.errors import ArgumentError, UploadNameError, UploadSizeError
from agent_sandbox.limits import MAX_COMPONENT_BYTES
from agent_sandbox.uploads.models import DeclaredUpload, UploadsConfig

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_CONTROLS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Unicode categories that a displayed name must not hold: controls, direction marks, halves of
surrogate pairs, line ends."""


def declared(
    config: UploadsConfig, filename: object, size_bytes: object, sha256: object = None
) -> DeclaredUpload:
    """Return the checked declaration.

    Raises:
        ArgumentError: E2001, wrong types, a negative size, no lower-case hex digest.
        UploadNameError: E7013.
        UploadSizeError: E7014, over the cap.
    """
    if not isinstance(filename, str):
        raise ArgumentError
    if not isinstance(size_bytes, int) or isinstance(size_bytes, bool) or size_bytes < 0:
        raise ArgumentError
    if sha256 is not None and not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise ArgumentError
    _check_name(config, filename)
    if size_bytes > config.max_size_bytes:
        raise UploadSizeError(config.max_size_bytes)
    return DeclaredUpload(filename, size_bytes, None if sha256 is None else sha256.lower())


def declared_download(config: UploadsConfig, filename: str, max_bytes: int) -> DeclaredUpload:
    """Return the declaration of a file that goes out: any name does, for an odd one another.

    Raises:
        UploadSizeError: E7014, over the cap.
    """
    try:
        return declared(replace(config, allowed_extensions=None), filename, max_bytes)
    except UploadNameError:
        return declared(replace(config, allowed_extensions=None), "download", max_bytes)


def _check_name(config: UploadsConfig, name: str) -> None:
    start = name[:MAX_COMPONENT_BYTES]
    # What is printable holds none of them; the other way round it is not so.
    if not start.isprintable() and any(unicodedata.category(c) in _CONTROLS for c in start):
        raise UploadNameError
    if not 0 < len(name) <= MAX_COMPONENT_BYTES or len(name.encode()) > MAX_COMPONENT_BYTES:
        raise UploadNameError
    if "/" in name or "\\" in name or name in (".", "..") or not name.strip():
        raise UploadNameError
    allowed = config.allowed_extensions
    if allowed is not None and PurePosixPath(name).suffix.lower() not in allowed:
        raise UploadNameError(allowed_extensions=sorted(allowed))


def object_prefix(workspace: str) -> str:
    """Return the prefix of a workspace's objects; it shows nothing of the workspace's name."""
    return hashlib.sha256(workspace.encode("utf-8", "surrogatepass")).hexdigest()[:32]
