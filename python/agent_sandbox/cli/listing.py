"""`agent-sandbox list` shows sandboxes, `agent-sandbox ls` the files in one."""

from __future__ import annotations

import argparse
import stat
from typing import TYPE_CHECKING

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command
from agent_sandbox.errors import FileKindError, SandboxNotFoundError

if TYPE_CHECKING:
    from agent_sandbox.models import FileInfo

_LIST_EXAMPLES = """\
examples:
  agent-sandbox list
  agent-sandbox list --json
  agent-sandbox list | cut -f1
      in a pipe: one line each, with tabs between and the id first.
"""

_LS_EXAMPLES = """\
examples:
  agent-sandbox ls ie3fr
      /home/user of the sandbox whose id begins like this.
  agent-sandbox ls ie3fr:/tmp
"""


def _add_list(parser: argparse.ArgumentParser) -> None:
    _arguments.add_json(parser)


def _run_list(arguments: argparse.Namespace) -> None:
    from agent_sandbox.cli import _reach, _show

    try:
        with _reach.sandboxes() as client:
            found = sorted(client.list(), key=lambda info: info.started_at)
    except SandboxNotFoundError:  # no service runs
        found = []
    if arguments.json:
        _show.as_json([_show.sandbox_fields(info) for info in found])
        return
    if not found:
        _show.note("There are no sandboxes. agent-sandbox create makes one.")
        return
    _show.table(
        ("SANDBOX", "ENDS IN", "STARTED", "METADATA"),
        [
            (
                info.sandbox_id,
                _show.until(info.end_at),
                _show.moment(info.started_at),
                " ".join(f"{key}={value}" for key, value in sorted(info.metadata.items())),
            )
            for info in found
        ],
        whole=("SANDBOX",),
    )


def _add_ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place",
        metavar="SANDBOX[:PATH]",
        help="id, or its beginning, and a directory or file in it (/home/user)",
    )
    _arguments.add_json(parser)


def _run_ls(arguments: argparse.Namespace) -> None:
    from agent_sandbox.cli import _reach, _show

    named, _, path = arguments.place.partition(":")
    path = _arguments.remote_path(path, "agent-sandbox ls")
    with _reach.sandboxes() as client:
        files = _reach.connect(client, named).files
        try:
            found = sorted(files.list(path), key=lambda entry: entry.name)
        except FileKindError:
            found = [files.stat(path)]
    if arguments.json:
        _show.as_json([_fields(entry) for entry in found])
        return
    if not found:
        _show.note(f"There is nothing in {_show.plain(path.rstrip('/') or '/')}.")
        return
    _show.table(
        ("MODE", "SIZE", "MODIFIED", "NAME"),
        [
            (
                _mode(entry),
                _show.size(entry.size_bytes),
                _show.moment(entry.modified_at),
                entry.name + _suffix(entry),
            )
            for entry in found
        ],
        folded=("NAME",),
        right=("SIZE",),
    )


def _fields(entry: FileInfo) -> dict[str, object]:
    return {
        "name": entry.name,
        "path": entry.path,
        "type": str(entry.type),
        "size_bytes": entry.size_bytes,
        "mode": f"{entry.mode:o}",
        "modified_at": entry.modified_at.isoformat(),
        "symlink_target": entry.symlink_target,
    }


_KINDS = {"file": stat.S_IFREG, "directory": stat.S_IFDIR, "symlink": stat.S_IFLNK}


def _mode(entry: FileInfo) -> str:
    return stat.filemode(_KINDS.get(str(entry.type), 0) | entry.mode)


def _suffix(entry: FileInfo) -> str:
    if entry.symlink_target is not None:
        return f" -> {entry.symlink_target}"
    return "/" if str(entry.type) == "directory" else ""


LIST = Command("list", "show your sandboxes", _LIST_EXAMPLES, _add_list, _run_list)
LS = Command("ls", "show the files in a sandbox", _LS_EXAMPLES, _add_ls, _run_ls)
