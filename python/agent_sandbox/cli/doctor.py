"""`agent-sandbox doctor`: what works on this machine, and how to mend the rest."""

from __future__ import annotations

import argparse

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command
from agent_sandbox.errors import EXIT_STATUS

_EXAMPLES = """\
examples:
  agent-sandbox doctor
  agent-sandbox doctor --json

The status is 0 where everything works, and 7 where something does not.
"""


def _add(parser: argparse.ArgumentParser) -> None:
    _arguments.add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    from agent_sandbox.cli import _checks, _show

    found = _checks.findings()
    if arguments.json:
        _show.as_json(
            [
                {"check": f.name, "works": f.works, "found": f.text, "remedy": f.remedy}
                for f in found
            ]
        )
    else:
        rows = [(f.name, "ok" if f.works else "NO", f.text, f.remedy) for f in found]
        _show.table(("CHECK", "", "FOUND", "REMEDY"), rows, folded=("FOUND", "REMEDY"))
    return 0 if all(f.works for f in found) else EXIT_STATUS["unsupported"]


DOCTOR = Command("doctor", "say what works on this machine", _EXAMPLES, _add, _run)
