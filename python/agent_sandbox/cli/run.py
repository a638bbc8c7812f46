"""`agent-sandbox run`: a command in a sandbox, with its output and its status."""

from __future__ import annotations

import argparse
import sys

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command, Usage, fail
from agent_sandbox.errors import FileMissingError

_EXAMPLES = """\
examples:
  agent-sandbox run ie3fr -- python3 -c 'print(1)'
      a program and its arguments, as they stand.
  agent-sandbox run ie3fr 'ls *.csv | wc -l'
      one argument alone is a line for bash.
  agent-sandbox run --cwd /tmp --timeout 60 ie3fr -- make

Options come before the sandbox. The status is that of the command, and 128 and the number of the
signal where one ended it; 127: there is no such program. Ctrl-C kills the command.
"""

_PROG = "agent-sandbox run"
_NO_PROGRAM = 127


def _add(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cwd", metavar="DIR", help="directory in the sandbox to start in (/home/user)")
    add(
        "--env",
        action="append",
        default=[],
        type=_arguments.pair,
        metavar="NAME=VALUE",
        help="a variable of its environment; repeatable",
    )
    add(
        "--timeout",
        type=_arguments.seconds,
        metavar="SECONDS",
        help="kill it after this time (never)",
    )
    _arguments.add_json(parser, "print status and output as one JSON object, at the end")
    add("sandbox", metavar="SANDBOX", help="id of the sandbox, or its beginning")
    add("words", nargs=argparse.REMAINDER, metavar="[--] COMMAND", help="what to run")


def _run(arguments: argparse.Namespace) -> int:
    from agent_sandbox.cli import _reach, _show

    words = _words(arguments.words)
    cwd = None if arguments.cwd is None else _arguments.remote_path(arguments.cwd, _PROG)
    with _reach.sandboxes() as client:
        sandbox = _reach.connect(client, arguments.sandbox)
        live = not arguments.json
        try:
            result = sandbox.commands.run(
                words[0] if len(words) == 1 else words,
                cwd=cwd,
                env=dict(arguments.env),
                timeout_s=arguments.timeout,
                on_stdout=_to_stdout if live else None,
                on_stderr=_to_stderr if live else None,
            )
        except FileMissingError:
            return fail("there is no such program or directory in the sandbox", _NO_PROGRAM)
    if arguments.json:
        _show.as_json(
            {
                "exit_code": result.exit_code,
                "stdout": result.stdout,
                "stderr": result.stderr,
                "stdout_omitted_bytes": result.stdout_omitted_bytes,
                "stderr_omitted_bytes": result.stderr_omitted_bytes,
            }
        )
    code = result.exit_code or 0
    return code if code >= 0 else 128 - code


def _words(given: list[str]) -> list[str]:
    words = given[1:] if given[:1] == ["--"] else given
    if not words:
        raise Usage(_PROG, "say what to run: agent-sandbox run SANDBOX -- COMMAND")
    if words is given and words[0].startswith("-"):
        raise Usage(
            _PROG,
            "options come before the sandbox, and -- before a command that begins with a dash",
        )
    return words


def _to_stdout(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _to_stderr(data: bytes) -> None:
    sys.stderr.buffer.write(data)
    sys.stderr.buffer.flush()


RUN = Command("run", "run a command in a sandbox", _EXAMPLES, _add, _run)
