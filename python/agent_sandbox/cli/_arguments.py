"""What every command's arguments share: one line for a mistake, and the kinds of values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from agent_sandbox.limits import MAX_TTL_S


class Usage(Exception):  # noqa: N818 - it is an answer to the user, not an error of the program
    """Wrong arguments: the line to print, and whose help to name."""

    def __init__(self, prog: str, line: str) -> None:
        super().__init__(line)
        self.prog = prog


class Parser(argparse.ArgumentParser):
    """A parser that raises `Usage` instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raise the mistake."""
        raise Usage(self.prog, message)


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


def add_isolation(to: argparse._ActionsContainer) -> None:
    """Add the options that say what commands in sandboxes of this machine run in."""
    to.add_argument(
        "--isolation",
        choices=("auto", "bubblewrap", "none"),
        default="auto",
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
