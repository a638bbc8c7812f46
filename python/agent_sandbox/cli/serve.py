"""`agent-sandbox serve`: the sandbox service on a port."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command

_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

_EXAMPLES = """\
examples:
  agent-sandbox serve
      on http://127.0.0.1:8080, for this machine only.
  agent-sandbox serve --host 0.0.0.0 --api-key-file /etc/agent-sandbox/keys
      for others; the file holds one key a line.
  agent-sandbox serve --api-key-file keys --domain sandboxes.example.com
      behind a TLS proxy that passes *.sandboxes.example.com on (docs/serve.md).

then, in a program:
  AGENT_SANDBOX_API_URL=http://127.0.0.1:8080 AGENT_SANDBOX_API_KEY=... python my_agent.py
"""


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--host", type=_arguments.host, default="127.0.0.1", help="address to listen on (127.0.0.1)"
    )
    add(
        "--port",
        type=_arguments.port,
        default=8080,
        help="port to listen on, 0 for any free one (8080)",
    )
    add("--api-key-file", type=Path, metavar="FILE", help="keys that callers may use, one a line")
    add(
        "--state-dir",
        type=Path,
        metavar="DIR",
        help="where sandboxes live (/var/lib/agent-sandbox for root, else under XDG_STATE_HOME)",
    )
    add(
        "--insecure",
        action="store_true",
        help="listen on an address that others reach, without API keys",
    )
    _arguments.add_isolation(parser)
    add(
        "--domain",
        type=_domain,
        metavar="NAME",
        help="name under which PORT-SANDBOX.NAME is a sandbox, as E2B's clients ask for it",
    )
    add(
        "--drain-seconds",
        type=_drain,
        default=5,
        metavar="SECONDS",
        help="time for what is under way after SIGTERM or Ctrl-C; a second one ends it (5)",
    )
    add(
        "--log-format",
        choices=("json", "text"),
        help="one JSON object a line, or words (text on a terminal, else json)",
    )


def _domain(text: str) -> str:
    if len(text) <= 190 and re.fullmatch(rf"{_LABEL}(\.{_LABEL})*(:[0-9]{{1,5}})?", text):
        return text.lower()
    raise argparse.ArgumentTypeError("a domain is a name, as in sandboxes.example.com")


def _drain(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text[:5]) <= 3600:
        return int(text[:5])
    raise argparse.ArgumentTypeError("a time is a whole number of seconds from 0 to 3600")


def _run(arguments: argparse.Namespace) -> None:
    from agent_sandbox.express.server import ServeConfig, serve_tcp

    serve_tcp(
        ServeConfig(
            host=arguments.host,
            port=arguments.port,
            api_key_file=arguments.api_key_file,
            state_dir=arguments.state_dir,
            insecure=arguments.insecure,
            isolation=arguments.isolation or "auto",
            network=arguments.allow_network,
            domain=arguments.domain,
            drain_s=arguments.drain_seconds,
            log_form=arguments.log_format or ("text" if sys.stderr.isatty() else "json"),
        )
    )


SERVE = Command("serve", "run the sandbox service on a port", _EXAMPLES, _add, _run)
