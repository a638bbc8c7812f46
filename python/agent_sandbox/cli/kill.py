"""`agent-sandbox kill`: the end of sandboxes."""

from __future__ import annotations

import argparse

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command, Usage
from agent_sandbox.errors import SandboxNotFoundError

_EXAMPLES = """\
examples:
  agent-sandbox kill ie3fr
  agent-sandbox kill --all
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sandboxes", nargs="*", metavar="SANDBOX", help="id of a sandbox, or its beginning"
    )
    parser.add_argument("--all", action="store_true", help="every sandbox that list shows")
    _arguments.add_json(parser)


def _run(arguments: argparse.Namespace) -> None:
    from agent_sandbox.cli import _reach, _show

    if bool(arguments.sandboxes) == arguments.all:
        raise Usage("agent-sandbox kill", "name the sandboxes to end, or say --all")
    ended: list[str] = []
    missing = False
    try:
        with _reach.sandboxes() as client:
            if arguments.all:
                wanted = [info.sandbox_id for info in client.list()]
            else:
                wanted = [_reach.full_id(client, named) for named in arguments.sandboxes]
            for sandbox_id in wanted:
                if client.kill(sandbox_id):
                    ended.append(sandbox_id)
                else:
                    missing = True
    except SandboxNotFoundError:  # no service runs
        missing = not arguments.all
    if arguments.json:
        _show.as_json({"ended": ended})
    else:
        for sandbox_id in ended:
            print(sandbox_id)
    if missing and not arguments.all:
        raise SandboxNotFoundError


KILL = Command("kill", "end sandboxes, with all their files", _EXAMPLES, _add, _run)
