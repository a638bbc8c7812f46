"""`agent-sandbox cp`: one file into a sandbox, or out of one."""

from __future__ import annotations

import argparse
import os
import posixpath
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from agent_sandbox.cli import _arguments
from agent_sandbox.cli._arguments import Command, Usage
from agent_sandbox.errors import FileMissingError

if TYPE_CHECKING:
    from agent_sandbox.sync import Sandbox

_EXAMPLES = """\
examples:
  agent-sandbox cp report.csv ie3fr:
      into /home/user of the sandbox whose id begins like this.
  agent-sandbox cp ie3fr:/tmp/result.bin .
  tar c src | agent-sandbox cp - ie3fr:src.tar
      - is standard input or output; a whole directory goes as an archive.

A name with a colon before its first slash is a sandbox and a path; write ./a:b for a local file.
"""

_PROG = "agent-sandbox cp"


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="FILE, - or SANDBOX:PATH")
    parser.add_argument("target", metavar="TARGET", help="SANDBOX:PATH, FILE, DIRECTORY or -")
    _arguments.add_json(parser, "print what was copied as a JSON object")


def _run(arguments: argparse.Namespace) -> None:
    from agent_sandbox.cli import _reach, _show

    remote = [_is_remote(name) for name in (arguments.source, arguments.target)]
    if remote[0] == remote[1]:
        raise Usage(_PROG, "one of the two is in a sandbox (SANDBOX:PATH), the other is not")
    there = arguments.source if remote[0] else arguments.target
    named, _, path = there.partition(":")
    goal = _arguments.remote_path(path, _PROG, directory=not remote[0])
    with _reach.sandboxes() as client:
        sandbox = _reach.connect(client, named)
        if remote[0]:
            done = _get(sandbox, goal, arguments.target)
        else:
            done = _put(sandbox, arguments.source, goal)
    if arguments.json:
        if arguments.target != "-":
            _show.as_json(done)
        return
    _show.note(f"{done['bytes']:,} bytes, sha256 {done['sha256']}")


def _is_remote(name: str) -> bool:
    return ":" in name.partition("/")[0]


def _put(sandbox: Sandbox, source: str, goal: str) -> dict[str, object]:
    from agent_sandbox.cli._show import Progress

    if source == "-":
        if goal.endswith("/"):
            raise Usage(_PROG, "name the file that standard input is to become")
        with Progress("standard input", None) as progress:
            counted = _Counted(sys.stdin.buffer, progress.advance)
            written = sandbox.files.write(goal, counted)
    else:
        if goal.endswith("/") or _is_directory(sandbox, goal):
            goal = posixpath.join(goal, os.path.basename(os.path.abspath(source)))
        with _opened(source) as file:
            size = os.fstat(file.fileno()).st_size
            with Progress(source, size) as progress:
                written = sandbox.files.write(goal, _Counted(file, progress.advance))
    return {"path": written.path, "bytes": written.bytes_written, "sha256": written.sha256}


def _is_directory(sandbox: Sandbox, path: str) -> bool:
    try:
        return str(sandbox.files.stat(path).type) == "directory"
    except FileMissingError:
        return False


def _opened(source: str) -> IO[bytes]:
    try:
        # Without O_NONBLOCK a FIFO would hold up its opener until somebody writes.
        descriptor = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise Usage(_PROG, f"{source}: {os.strerror(error.errno or 0)}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Usage(_PROG, f"{source} is no regular file; a directory goes as an archive (tar)")
    return os.fdopen(descriptor, "rb")


class _Counted:
    """A file whose reader is watched."""

    def __init__(self, file: IO[bytes], advance: Callable[[int], None]) -> None:
        self._file, self._advance = file, advance

    def read(self, size: int, /) -> bytes:
        """Read, and tell how much it was."""
        data = self._file.read(size)
        self._advance(len(data))
        return data


def _get(sandbox: Sandbox, path: str, target: str) -> dict[str, object]:
    from agent_sandbox.bytestream import Sha256
    from agent_sandbox.cli._show import Progress
    from agent_sandbox.client.local_files import LocalFile

    digest = Sha256()
    count = 0
    goal = Path(target) if target == "-" else _goal(target, path)
    file = LocalFile(goal)
    size = sandbox.files.stat(path).size_bytes  # for the eye alone: it may be another by then
    with Progress(path, size) as progress, sandbox.files.stream(path) as chunks:
        try:
            for chunk in chunks:
                digest.update(chunk)
                count += len(chunk)
                progress.advance(len(chunk))
                if target == "-":
                    sys.stdout.buffer.write(chunk)
                elif file.feed(chunk):
                    with _naming(target):
                        file.spill()
            if target == "-":
                sys.stdout.buffer.flush()
            else:
                with _naming(target):
                    file.finish()
        except BaseException:
            file.discard()
            raise
    return {"path": str(goal), "bytes": count, "sha256": digest.hexdigest()}


def _goal(target: str, path: str) -> Path:
    """Return the regular file, there or not yet, that a remote one is to become."""
    from agent_sandbox.client.local_files import local_goal

    goal = Path(target)
    if goal.is_dir():
        goal /= posixpath.basename(path)
    elif target.endswith("/"):
        raise Usage(_PROG, f"{target} is no directory")
    try:
        real = local_goal(goal)
    except OSError as error:  # a device or FIFO that would be gone, a loop of links
        why = os.strerror(error.errno) if error.errno else "it is no regular file"
        raise Usage(_PROG, f"{goal}: {why}") from None
    return real if goal.is_symlink() else goal  # the link stays, as with any other writer


@contextmanager
def _naming(target: str) -> Iterator[None]:
    """Say in an error of the local disk which file it is about."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{target}: {os.strerror(error.errno or 0)}") from error


CP = Command("cp", "copy a file into a sandbox or out of one", _EXAMPLES, _add, _run)
