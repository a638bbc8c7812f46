"""What every command's arguments share: one line for a mistake, and the kinds of values."""

from __future__ import annotations

import argparse
import posixpath
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from agent_sandbox.errors import PathError
from agent_sandbox.limits import MAX_TTL_S
from agent_sandbox.paths import canonical_path


class Usage(Exception):  # noqa: N818 - it is an answer to the user, not an error of the program
    """Wrong arguments: the line to print, and whose help to name."""

    def __init__(self, prog: str, line: str) -> None:
        super().__init__(line)
        self.prog = prog


class Parser(argparse.ArgumentParser):
    """A parser that raises `Usage` instead of ending the process.

    What a command does not know is its own mistake, so that its own help is named; argparse would
    leave it to the parser of all commands.
    """

    def parse_known_args(  # type: ignore[override]  # one way of calling it is enough
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse everything, or raise the mistake."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raise the mistake."""
        raise Usage(self.prog, message)


class Help(argparse.RawDescriptionHelpFormatter):
    """Wraps a description, and leaves text that has lines of its own, as examples do."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


@dataclass(frozen=True, slots=True)
class Command:
    """One command of the command line.

    Attributes:
        name: The word that names it.
        promise: What it does, in one line.
        examples: The end of its help.
        add: Adds its arguments to its parser.
        run: Runs it with what was given; returns its exit status, None for success.
    """

    name: str
    promise: str
    examples: str
    add: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]


def fail(line: str, status: int) -> int:
    """Print a line on standard error and return the status to end with."""
    # Arguments come from anywhere: one line stays one line, and no escape reaches the terminal.
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    print(f"agent-sandbox: {shown}", file=sys.stderr)
    return status


def add_json(to: argparse.ArgumentParser, promise: str = "print JSON, for programs") -> None:
    """Add `--json`."""
    to.add_argument("--json", action="store_true", help=promise)


def remote_path(path: str, prog: str, *, directory: bool = True) -> str:
    """Return an absolute path in a sandbox; others begin in the home directory.

    Args:
        path: As it was given.
        prog: Whose help to name.
        directory: Whether it may be one.

    Raises:
        Usage: It can be no path there, which is told before anybody is asked.
    """
    whole = posixpath.join("/home/user", path)
    try:
        canonical_path(whole, directory=directory)
    except PathError:
        raise Usage(
            prog,
            "a path in a sandbox has no `..` and no NUL, at most 255 bytes in a name and 4096 in"
            " all; a file's does not end in /; one without / in front begins in /home/user",
        ) from None
    return whole


def pair(text: str) -> tuple[str, str]:
    """Return a name and a value."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("write NAME=VALUE")
    return name, value


def seconds(text: str) -> float:
    """Return a positive number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0 < value < float("inf"):
        return value
    raise argparse.ArgumentTypeError("a time is a positive number of seconds")


def add_isolation(to: argparse._ActionsContainer) -> None:
    """Add the options that say what commands in sandboxes of this machine run in."""
    to.add_argument(
        "--isolation",
        choices=("auto", "bubblewrap", "none"),
        help="auto: isolate, or offer files alone where this machine cannot; bubblewrap: refuse to"
        " start then; none: run commands without any isolation (auto)",
    )
    to.add_argument(
        "--allow-network",
        action="store_true",
        help="let sandboxes use this machine's network, services on its loopback included",
    )


def port(text: str) -> int:
    """Return a port, 0 to 65,535."""
    if text.isascii() and text.isdigit() and int(text[:6]) <= 65535:
        return int(text[:6])
    raise argparse.ArgumentTypeError("a port is a whole number from 0 to 65535")


def ttl(text: str) -> int:
    """Return a life in seconds."""
    if text.isascii() and text.isdigit() and 1 <= int(text[:6]) <= MAX_TTL_S:
        return int(text[:6])
    raise argparse.ArgumentTypeError(f"a life is a whole number of seconds from 1 to {MAX_TTL_S}")


def host(text: str) -> str:
    """Return a host without scheme and port."""
    if text and text == text.strip() and "/" not in text:
        return text
    raise argparse.ArgumentTypeError("a host is a name or an address, without scheme and port")
