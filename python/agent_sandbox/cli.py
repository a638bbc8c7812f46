"""The `agent-sandbox` command: it reads arguments, starts one service, and ends with a status.

Nothing heavy is imported before a command is known, so `--help` and wrong arguments answer at
once. Standard output belongs to the command (under `mcp` it is the protocol's wire); everything
for people goes to standard error, one line at a time.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from agent_sandbox import __version__
from agent_sandbox.errors import EXIT_STATUS, AgentSandboxError
from agent_sandbox.limits import DEFAULT_TTL_S, MAX_TTL_S

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_UNEXPECTED = 1

_NEXT = """\
next steps:
  agent-sandbox mcp                     a client starts this itself; see the README for its file
  agent-sandbox mcp --transport http    serve http://127.0.0.1:8000/mcp
  agent-sandbox serve                   a sandbox service for SDKs, on http://127.0.0.1:8080
  agent-sandbox COMMAND --help          every option of a command, with examples
"""

_MCP_EXAMPLES = """\
examples:
  agent-sandbox mcp
      STDIO, with an embedded sandbox service: no account and no configuration.
  agent-sandbox mcp --transport http --port 8000
      Streamable HTTP at http://127.0.0.1:8000/mcp.
  AGENT_SANDBOX_API_KEY=... agent-sandbox mcp --api-url https://sandboxes.example.com
      sandboxes of a service elsewhere. The key is read from the environment only.
"""

_SERVE_EXAMPLES = """\
examples:
  agent-sandbox serve
      on http://127.0.0.1:8080, for this machine only.
  agent-sandbox serve --host 0.0.0.0 --api-key-file /etc/agent-sandbox/keys
      for others; the file holds one key a line.

then, in a program:
  AGENT_SANDBOX_API_URL=http://127.0.0.1:8080 AGENT_SANDBOX_API_KEY=... python my_agent.py
"""


class _Usage(Exception):  # noqa: N818 - it is an answer to the user, not an error of the program
    """Wrong arguments: the line to print, and whose help to name."""

    def __init__(self, prog: str, line: str) -> None:
        super().__init__(line)
        self.prog = prog


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(self.prog, message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 is success, 2 wrong arguments, 130 an interrupt, 1 something unexpected; an
    `AgentSandboxError` ends with the status of its category (see docs/errors.md).

    Args:
        argv: Arguments without the program's name; those of the process by default.
    """
    try:
        arguments = build_parser().parse_args(argv)
        _run(arguments)
    except _Usage as usage:
        return _fail(f"{usage} (see: {usage.prog} --help)", EXIT_USAGE)
    except AgentSandboxError as error:
        reason = getattr(error, "reason", None)  # which setting a ConfigError means, in our words
        line = f"{reason} (see: agent-sandbox --help)" if reason else error.text
        return _fail(line, EXIT_STATUS[error.category])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as end:  # --help and --version, and servers that end themselves
        return end.code if isinstance(end.code, int) else EXIT_UNEXPECTED if end.code else 0
    except OSError as error:
        return _fail(error.strerror or type(error).__name__, EXIT_UNEXPECTED)
    except Exception as error:  # noqa: BLE001 - the outermost edge: a line instead of a traceback
        if os.environ.get("AGENT_SANDBOX_DEBUG"):
            traceback.print_exc()
        return _fail(
            f"an unexpected {type(error).__name__} stopped it; AGENT_SANDBOX_DEBUG=1 shows where",
            EXIT_UNEXPECTED,
        )
    return 0


def _fail(line: str, status: int) -> int:
    # Arguments come from anywhere: one line stays one line, and no escape reaches the terminal.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    print(f"agent-sandbox: {shown}", file=sys.stderr)
    return status


def _run(arguments: argparse.Namespace) -> None:
    if arguments.command is None:
        raise _Usage("agent-sandbox", "say what to do: mcp or serve")
    {"mcp": _mcp, "serve": _serve}[arguments.command](arguments)


def _mcp(arguments: argparse.Namespace) -> None:
    over_http = arguments.transport == "http"
    for option in ("host", "port", "insecure", "allowed_host", "allowed_origin"):
        value = getattr(arguments, option)
        given = value is not None and value is not False and value != []  # port 0 is given, too
        if given and not over_http:
            raise _Usage(
                "agent-sandbox mcp", f"--{option.replace('_', '-')} needs --transport http"
            )
    from agent_sandbox.mcp_server.config import McpConfig, is_loopback

    host = arguments.host or "127.0.0.1"
    if over_http and not arguments.insecure and not is_loopback(host):
        raise _Usage(
            "agent-sandbox mcp",
            f"{host} is open to others and there are no credentials yet: keep 127.0.0.1 behind an"
            " authenticating proxy, or say --insecure",
        )
    from agent_sandbox.mcp_server.app import run_http, run_stdio

    config = McpConfig(
        provider=arguments.provider,
        api_url=arguments.api_url,
        sandbox_url=arguments.sandbox_url,
        ttl_seconds=arguments.ttl,
        host=host,
        port=8000 if arguments.port is None else arguments.port,
        insecure=arguments.insecure,
        allowed_hosts=tuple(arguments.allowed_host),
        allowed_origins=tuple(arguments.allowed_origin),
    )
    (run_http if over_http else run_stdio)(config)


def _serve(arguments: argparse.Namespace) -> None:
    from agent_sandbox.express.server import ServeConfig, serve_tcp

    serve_tcp(
        ServeConfig(
            host=arguments.host,
            port=arguments.port,
            api_key_file=arguments.api_key_file,
            state_dir=arguments.state_dir,
            insecure=arguments.insecure,
        )
    )


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every command; it raises instead of ending the process."""
    parser = _Parser(
        prog="agent-sandbox",
        description="Files in and out of sandboxes, for AI agents: an MCP server and a sandbox"
        " service.",
        epilog=_NEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_mcp(_command(commands, "mcp", "serve MCP tools over STDIO or HTTP", _MCP_EXAMPLES))
    _add_serve(_command(commands, "serve", "run the sandbox service on a port", _SERVE_EXAMPLES))
    return parser


def _command(commands: Any, name: str, promise: str, examples: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=promise,
        description=f"{promise[0].upper()}{promise[1:]}.",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def _add_mcp(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--transport",
        choices=("stdio", "http"),
        default="stdio",
        help="stdio for a client that starts this command, http for one that connects (stdio)",
    )
    add("--host", type=_host, help="address to listen on (127.0.0.1)")
    add("--port", type=_port, help="port to listen on, 0 for any free one (8000)")
    add(
        "--allowed-host",
        action="append",
        default=[],
        metavar="HOST",
        help="a Host header to accept beside the own address, as behind a proxy; repeatable",
    )
    add(
        "--allowed-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="an Origin header of a browser page to accept; repeatable",
    )
    add(
        "--insecure",
        action="store_true",
        help="listen on an address that others reach, without credentials",
    )
    add(
        "--ttl",
        type=_ttl,
        default=DEFAULT_TTL_S,
        metavar="SECONDS",
        help=f"life of a sandbox after its last use, 1 to {MAX_TTL_S} ({DEFAULT_TTL_S})",
    )
    where = parser.add_argument_group(
        "where the sandboxes are",
        "Without any of these: AGENT_SANDBOX_PROVIDER, _API_URL, _URL and _API_KEY, else an"
        " embedded service that ends with this command.",
    )
    where.add_argument(
        "--provider", choices=("local", "express"), help="embedded, or a service at --api-url"
    )
    where.add_argument("--api-url", metavar="URL", help="control plane of the service")
    where.add_argument("--sandbox-url", metavar="URL", help="data plane, where it is elsewhere")


def _add_serve(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", type=_host, default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", type=_port, default=8080, help="port to listen on, 0 for any free one (8080)")
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


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text[:6]) <= 65535:
        return int(text[:6])
    raise argparse.ArgumentTypeError("a port is a whole number from 0 to 65535")


def _ttl(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_TTL_S:
        return int(text[:6])
    raise argparse.ArgumentTypeError(f"a life is a whole number of seconds from 1 to {MAX_TTL_S}")


def _host(text: str) -> str:
    if text and text == text.strip() and "/" not in text:
        return text
    raise argparse.ArgumentTypeError("a host is a name or an address, without scheme and port")
