"""`agent-sandbox create`: a sandbox that outlives the command."""

from __future__ import annotations

import argparse

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command
from agent_sandbox.limits import DEFAULT_TTL_S, MAX_TTL_S

_EXAMPLES = """\
examples:
  agent-sandbox create
      prints the id of the new sandbox.
  ID=$(agent-sandbox create --ttl 3600)
  agent-sandbox run $ID -- python3 --version

It lives in a service of yours that this command starts in the background where none runs, and that
ends with its last sandbox.
"""


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ttl",
        type=_arguments.ttl,
        default=DEFAULT_TTL_S,
        metavar="SECONDS",
        help=f"its life unless it is used or renewed, 1 to {MAX_TTL_S} ({DEFAULT_TTL_S})",
    )
    parser.add_argument(
        "--metadata",
        action="append",
        default=[],
        type=_arguments.pair,
        metavar="KEY=VALUE",
        help="a text to attach, which list shows; repeatable",
    )
    _arguments.add_isolation(parser.add_argument_group("the service, where this starts it"))
    _arguments.add_json(parser)


def _run(arguments: argparse.Namespace) -> None:
    from agent_sandbox.cli import _reach, _show
    from agent_sandbox.client.providers.child import Options

    wish = Options(arguments.isolation or "auto", arguments.allow_network)
    given = arguments.isolation is not None or arguments.allow_network
    with _reach.sandboxes(start=True, options=wish if given else None) as client:
        sandbox = client.create(ttl_seconds=arguments.ttl, metadata=dict(arguments.metadata))
        info = client.info(sandbox.sandbox_id)
    if arguments.json:
        _show.as_json(_show.sandbox_fields(info))
        return
    print(info.sandbox_id)
    _show.note(
        f"It ends in {_show.until(info.end_at)} unless it is used. Next:\n"
        f"  agent-sandbox run {info.sandbox_id[:6]} -- uname -a\n"
        f"  agent-sandbox cp FILE {info.sandbox_id[:6]}:"
    )


CREATE = Command("create", "make a sandbox and print its id", _EXAMPLES, _add, _run)
