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

from agent_sandbox import __version__
from agent_sandbox.cli._arguments import Command, Parser, Usage
from agent_sandbox.cli.mcp import MCP
from agent_sandbox.cli.put import PUT
from agent_sandbox.cli.serve import SERVE
from agent_sandbox.cli.token import TOKEN
from agent_sandbox.errors import EXIT_STATUS, AgentSandboxError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_UNEXPECTED = 1

_NEXT = """\
next steps:
  agent-sandbox mcp                     a client starts this itself; see the README for its file
  agent-sandbox mcp --transport http    serve http://127.0.0.1:8000/mcp
  agent-sandbox serve                   a sandbox service for SDKs, on http://127.0.0.1:8080
  agent-sandbox put FILE URL            send a file to an upload session of an assistant
  agent-sandbox COMMAND --help          every option of a command, with examples
"""

_COMMANDS: tuple[Command, ...] = (MCP, SERVE, TOKEN, PUT)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 is success, 2 wrong arguments, 130 an interrupt, 1 something unexpected; an
    `AgentSandboxError` ends with the status of its category (see docs/errors.md).

    Args:
        argv: Arguments without the program's name; those of the process by default.
    """
    prog = "agent-sandbox"
    try:
        arguments = build_parser().parse_args(argv)
        prog = f"{prog} {arguments.command or ''}".rstrip()
        status = _run(arguments)
    except Usage as usage:
        return _fail(f"{usage} (see: {usage.prog} --help)", EXIT_USAGE)
    except AgentSandboxError as error:
        reason = getattr(error, "reason", None)  # which setting a ConfigError means, in our words
        line = f"{reason} (see: {prog} --help)" if reason else error.text
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
    return status


def _fail(line: str, status: int) -> int:
    # Arguments come from anywhere: one line stays one line, and no escape reaches the terminal.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    print(f"agent-sandbox: {shown}", file=sys.stderr)
    return status


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command is None:
        raise Usage("agent-sandbox", "say what to do: mcp, serve or put")
    (chosen,) = (command for command in _COMMANDS if command.name == arguments.command)
    return chosen.run(arguments) or 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every command; it raises instead of ending the process."""
    parser = Parser(
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
    for command in _COMMANDS:
        command.add(
            commands.add_parser(
                command.name,
                help=command.promise,
                description=f"{command.promise[0].upper()}{command.promise[1:]}.",
                epilog=command.examples,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )
    return parser
