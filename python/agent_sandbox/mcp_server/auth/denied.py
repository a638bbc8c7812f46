"""The operator's deny-list: what ends the rights of an access token before it expires."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from agent_sandbox.mcp_server.auth.watched import WatchedFile, entries
from agent_sandbox.mcp_server.principals import Principal

_LINE = re.compile(r"(jti|sub|client)[ \t]+(\S(?:.*\S)?)")

Denied = frozenset[tuple[str, str]]


def parse_lines(text: str) -> tuple[Denied, list[int]]:
    """Return the pairs of kind and value, and the numbers of the lines that are none.

    A line is `jti`, `sub` or `client` and a value (see `entries`).
    """
    found: set[tuple[str, str]] = set()
    wrong: list[int] = []
    for number, line in entries(text):
        parts = _LINE.fullmatch(line)
        if parts is None:
            wrong.append(number)
        else:
            found.add((parts[1], parts[2]))
    return frozenset(found), wrong


@dataclass(slots=True)
class DenyList:
    """Who is kept out; without a file nobody. A file that cannot be read keeps everybody out."""

    _file: WatchedFile[Denied] | None

    @classmethod
    def open(cls, path: Path | None) -> DenyList:
        """Return the list of a file.

        Raises:
            ConfigError: E6000, with a `reason`: the file cannot be used.
        """
        if path is None:
            return cls(None)
        file = WatchedFile(path, "deny file (--oauth-deny-file)", parse_lines)
        file.start()
        return cls(file)

    def names(self, principal: Principal, jti: str | None) -> bool:
        """Tell whether a token is kept out, as the file is now."""
        if self._file is None:
            return False
        denied = self._file.look()
        if denied is None:
            return True
        asked = {("client", principal.client), ("sub", principal.subject), ("jti", jti)}
        return not denied.isdisjoint(asked)
