"""Static bearer tokens: how one is made, and the lines that let it in.

A token is `ast_`, its id, `_` and 256 random bits. A line of the token file is its id, the sha256
of the token, and a name for people. With so many random bits a plain digest is enough: there is
nothing to guess, so nothing to slow down. The id is who the caller is.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agent_sandbox.errors import ConfigError
from agent_sandbox.mcp_server.auth.watched import WatchedFile, entries

PREFIX = "ast_"
MAX_NAME_CHARS = 64

_TOKEN = re.compile(r"ast_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
_LINE = re.compile(r"([0-9a-f]{16})[ \t]+([0-9a-f]{64})(?:[ \t]+(.*))?")
_WHAT = "token file (--token-file or AGENT_SANDBOX_TOKEN_FILE)"
_NOBODY = hashlib.sha256(b"").digest()

Digests = Mapping[str, bytes]
"""The digests of tokens by their ids."""


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token that was just made.

    Attributes:
        id: Who its bearer is.
        token: The secret; it is kept nowhere.
        line: What lets it in, for the token file.
    """

    id: str
    token: str = field(repr=False)
    line: str


def make_token(name: str) -> NewToken:
    """Return a new token for a name of 1 to 64 printable characters.

    Raises:
        ConfigError: E6000, the name cannot stand in a line.
    """
    if not 1 <= len(name) <= MAX_NAME_CHARS or not name.isprintable() or name != name.strip():
        raise ConfigError(reason="A token's name is 1 to 64 printable characters.")
    token_id = secrets.token_hex(8)
    token = f"{PREFIX}{token_id}_{secrets.token_urlsafe(32)}"
    return NewToken(token_id, token, f"{token_id} {_digest(token).hex()} {name}")


def parse_lines(text: str) -> tuple[Digests, list[int]]:
    """Return the digests by id, and the numbers of the lines that are none (see `entries`)."""
    found: dict[str, bytes] = {}
    wrong: list[int] = []
    for number, line in entries(text):
        parts = _LINE.fullmatch(line)
        if parts is None or parts[1] in found:
            wrong.append(number)
        else:
            found[parts[1]] = bytes.fromhex(parts[2])
    return found, wrong


class StaticTokens:
    """The tokens that are let in, from a file that may change and from a fixed text.

    Args:
        file: A token file; it is read again when it has changed. One that cannot be read any more
            lets nobody in.
        text: Lines of the same form, from the environment.

    Raises:
        ConfigError: E6000, with a `reason`: a source cannot be used, or there is no token.
    """

    def __init__(self, file: Path | None, text: str | None) -> None:
        self._file = WatchedFile(file, _WHAT, parse_lines) if file is not None else None
        self._fixed, wrong = parse_lines(text or "")
        if wrong:
            raise ConfigError(reason=f"Line {wrong[0]} of AGENT_SANDBOX_TOKENS is not understood.")
        from_file = self._file.start() if self._file is not None else {}
        if not self._fixed and not from_file:
            raise ConfigError(
                reason="There is no token: make one with `agent-sandbox token new NAME`."
            )

    def find(self, token: str) -> str | None:
        """Return the id of a token that is let in. A wrong secret takes as long as a wrong id."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return None
        known = self._digest_of(parts[1])
        same = hmac.compare_digest(known or _NOBODY, _digest(token))
        return parts[1] if known is not None and same else None

    def holds(self, token_id: str) -> bool:
        """Tell whether a token of this id is let in now."""
        return self._digest_of(token_id) is not None

    def _digest_of(self, token_id: str) -> bytes | None:
        from_file = self._file.look() if self._file is not None else None
        return self._fixed.get(token_id) or (from_file or {}).get(token_id)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
