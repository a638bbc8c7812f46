"""The one-time secret of a session, and the key that its stored proof is made with."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets as _secrets
import stat
from pathlib import Path
from typing import NoReturn

from agent_sandbox.errors import ConfigError

SECRET_BYTES = 32
"""Random bytes in a secret (256 bits), and in a generated server key."""

_CONTEXT = b"agent-sandbox upload secret v1"


class KeepsSecrets:
    """Base of what holds a key, a password or a secret: it is never pickled, and so never sent.

    Raises:
        TypeError: On every attempt to pickle, to copy or to deep-copy it.
    """

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds secrets and is not pickled")


def new_secret() -> str:
    """Return a fresh secret: 43 characters of the URL-safe alphabet."""
    return _secrets.token_urlsafe(SECRET_BYTES)


def new_id() -> str:
    """Return a fresh identifier of 128 random bits, in hex."""
    return _secrets.token_hex(16)


def secret_hmac(server_key: bytes, upload_id: str, endpoint: str, secret: str) -> bytes:
    """Return HMAC-SHA256 of the session, its endpoint and the secret (RFC 2104).

    Each part carries its length, so that no two different triples make one message. Any text is
    taken, lone surrogates too: a header may hold any byte.
    """
    parts = (_CONTEXT, *(part.encode("utf-8", "surrogatepass") for part in (upload_id, endpoint)))
    message = b"".join(
        len(part).to_bytes(8, "big") + part
        for part in (*parts, secret.encode("utf-8", "surrogatepass"))
    )
    return hmac.digest(server_key, message, hashlib.sha256)


def matches(stored: bytes, computed: bytes) -> bool:
    """Compare two proofs in constant time; bytes, since text outside ASCII is a TypeError."""
    return hmac.compare_digest(stored, computed)


def load_server_key(path: Path) -> bytes:
    """Return the server key in `path`, generated with mode 0600 if the file is missing.

    Raises:
        ConfigError: E6000, the file is too short, or others than its owner can reach it.
    """
    if not path.exists():
        # Whole before it has its name: of several processes that start at once, one key wins.
        temporary = path.with_name(f".{path.name}.{_secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_secrets.token_bytes(SECRET_BYTES))
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()
    return _read_key(path)


def _read_key(path: Path) -> bytes:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        key = file.read(4_096)
    if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077 or len(key) < SECRET_BYTES:
        raise ConfigError(
            reason="The server key of uploads is a regular file of at least 32 bytes that only its"
            " owner can reach (chmod 600)."
        )
    return key
