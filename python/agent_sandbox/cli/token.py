"""`agent-sandbox token new`: makes a static token for callers over HTTP."""

from __future__ import annotations

import argparse

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command

_EXAMPLES = """\
examples:
  agent-sandbox token new laptop
      prints the token, once, and the line for the file of `agent-sandbox mcp --token-file`.
  agent-sandbox token new build --json
      the same for a script.

To revoke a token, delete its line: the running server sees it at once.
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", metavar="new", choices=("new",), help="make a token; nothing is stored"
    )
    parser.add_argument("name", metavar="NAME", help="who gets it, for you to read in the file")
    _arguments.add_json(parser, "print one JSON object")


def _run(arguments: argparse.Namespace) -> None:
    from agent_sandbox.cli import _show
    from agent_sandbox.mcp_server.auth.tokens import make_token

    made = make_token(arguments.name)
    if arguments.json:
        _show.as_json({"id": made.id, "token": made.token, "line": made.line})
        return
    print(f"token, for the client; it is shown only now:\n  {made.token}")
    print(f"line, for the file of --token-file:\n  {made.line}")


TOKEN = Command("token", "make a token for callers over HTTP", _EXAMPLES, _add, _run)
