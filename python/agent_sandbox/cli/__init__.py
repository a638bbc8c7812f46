"""The `agent-sandbox` command: it reads arguments, runs one command, and ends with a status.

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
from contextlib import suppress

from agent_sandbox import __version__
from agent_sandbox.cli._arguments import Command, Help, Parser, Usage, fail
from agent_sandbox.cli.copy import CP
from agent_sandbox.cli.create import CREATE
from agent_sandbox.cli.doctor import DOCTOR
from agent_sandbox.cli.kill import KILL
from agent_sandbox.cli.listing import LIST, LS
from agent_sandbox.cli.mcp import MCP
from agent_sandbox.cli.put import PUT
from agent_sandbox.cli.run import RUN
from agent_sandbox.cli.serve import SERVE
from agent_sandbox.cli.token import TOKEN
from agent_sandbox.errors import EXIT_STATUS, AgentSandboxError, ArgumentError, ConfigError

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_UNEXPECTED = 1
EXIT_BROKEN_PIPE = 141

_NEXT = """\
next steps:
  agent-sandbox mcp                     a client starts this itself; see the README for its file
  agent-sandbox mcp --transport http    serve http://127.0.0.1:8000/mcp
  agent-sandbox serve                   a sandbox service for SDKs, on http://127.0.0.1:8080
  agent-sandbox create                  a sandbox of your own, for run, cp, ls and kill
  agent-sandbox put FILE URL            send a file to an upload session of an assistant
  agent-sandbox doctor                  what works on this machine, and how to mend the rest
  agent-sandbox COMMAND --help          every option of a command, with examples
"""

COMMANDS: tuple[Command, ...] = (
    *(MCP, SERVE),
    *(CREATE, LIST, LS, CP, RUN, KILL, PUT),
    *(TOKEN, DOCTOR),
)
"""Every command, in the order of the help."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    0 is success, 2 wrong arguments, 130 an interrupt, 141 that nobody reads the output any more, 1
    something unexpected; an `AgentSandboxError` ends with the status of its category (see
    docs/errors.md).

    Args:
        argv: Arguments without the program's name; those of the process by default.
    """
    prog = "agent-sandbox"
    try:
        arguments = build_parser().parse_args(argv)
        prog = f"{prog} {arguments.command}" if arguments.command else prog
        status = _run(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()  # here, where a reader that has gone can still be told apart
    except Usage as usage:
        return fail(f"{usage} (see: {usage.prog} --help)", EXIT_USAGE)
    except AgentSandboxError as error:
        reason = getattr(error, "reason", None)  # what is wrong here, in words of ours
        line = reason or error.text
        if reason and isinstance(error, ConfigError | ArgumentError):
            line += f" (see: {prog} --help)"
        return fail(line, EXIT_STATUS[error.category])
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as end:  # --help and --version, and servers that end themselves
        return end.code if isinstance(end.code, int) else EXIT_UNEXPECTED if end.code else 0
    except BrokenPipeError:  # whoever read our output has seen enough, as `head` does
        _give_up_output()
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return fail(error.strerror or type(error).__name__, EXIT_UNEXPECTED)
    except Exception as error:  # noqa: BLE001 - the outermost edge: a line instead of a traceback
        if os.environ.get("AGENT_SANDBOX_DEBUG"):
            traceback.print_exc()
        return fail(
            f"an unexpected {type(error).__name__} stopped it; AGENT_SANDBOX_DEBUG=1 shows where",
            EXIT_UNEXPECTED,
        )
    return status


def _give_up_output() -> None:
    """Lead standard output into nothing: what Python still holds of it would fail at its exit."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):  # it is no file: then nothing is held either
        os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command is None:
        raise Usage("agent-sandbox", "say what to do: mcp, serve, create, put or another command")
    (chosen,) = (command for command in COMMANDS if command.name == arguments.command)
    return chosen.run(arguments) or 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of every command; it raises instead of ending the process."""
    parser = Parser(
        prog="agent-sandbox",
        description="Files and commands in sandboxes, for AI agents and people: an MCP server, a"
        " sandbox service, and commands.",
        epilog=_NEXT,
        formatter_class=Help,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        command.add(
            commands.add_parser(
                command.name,
                help=command.promise,
                description=f"{command.promise[0].upper()}{command.promise[1:]}.",
                epilog=command.examples,
                formatter_class=Help,
                allow_abbrev=False,
            )
        )
    return parser
