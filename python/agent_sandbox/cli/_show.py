"""What people see: tables and progress on a terminal, plain lines in a pipe, JSON for programs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from agent_sandbox.models import SandboxInfo

QUIET_S = 1.0
"""Work that is done by then shows no progress, unless it was asked for."""


def plain(text: str) -> str:
    """Return text that stays in its line and does nothing to a terminal, whoever named it so."""
    return "".join(
        c if c.isprintable() and _fits(c) else c.encode("unicode_escape").decode() for c in text
    )


def _fits(character: str) -> bool:
    if character.isascii():
        return True
    try:
        character.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        return False
    return True


def as_json(value: Any) -> None:
    """Print one JSON value on a line of standard output.

    What does something to a terminal, or has no place in the encoding of the output, is escaped.
    """
    text = json.dumps(value, ensure_ascii=False)
    print("".join(c if c.isprintable() and _fits(c) else json.dumps(c)[1:-1] for c in text))


def sandbox_fields(info: SandboxInfo) -> dict[str, object]:
    """Return what JSON says about a sandbox."""
    return {
        "sandbox_id": info.sandbox_id,
        "state": info.state,
        "started_at": info.started_at.isoformat(),
        "end_at": info.end_at.isoformat(),
        "metadata": info.metadata,
    }


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    whole: Sequence[str] = (),
    folded: Sequence[str] = (),
    right: Sequence[str] = (),
) -> None:
    """Print rows: as a table on a terminal, else one line each with tabs between.

    Args:
        columns: Their headings; only a terminal shows them.
        rows: As many texts as there are columns, each.
        whole: Columns that stay in one line and are never cut, since they are there to be copied.
        folded: Columns that go on in further lines; the others are cut where there is no room.
        right: Columns that are aligned to the right.
    """
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(plain(cell) for cell in row))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for at, column in enumerate(columns):
        shown.add_column(
            column,
            overflow="fold" if column in folded else "ellipsis",
            no_wrap=column not in folded,
            min_width=max((len(row[at]) for row in rows), default=0) if column in whole else None,
            justify="right" if column in right else "left",
        )
    for row in rows:
        shown.add_row(*(Text(plain(cell)) for cell in row))  # Text: no markup in what others named
    Console(highlight=False).print(shown)


def note(text: str) -> None:
    """Print a line for a person who looks on; nothing where standard error is no terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def size(count: int) -> str:
    """Return a number of bytes: short on a terminal, exact elsewhere."""
    if not sys.stdout.isatty() or count < 1000:
        return str(count)
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


def duration(seconds: float) -> str:
    """Return a time in the two units that matter."""
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86_400, whole // 3_600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def until(when: datetime) -> str:
    """Return how long it is until a moment."""
    return duration((when - datetime.now(UTC)).total_seconds())


def moment(when: datetime) -> str:
    """Return a moment in this machine's time zone."""
    return when.astimezone().strftime("%Y-%m-%d %H:%M:%S")


class Progress:
    """Shows on standard error how far a transfer is, if that is a terminal and it takes long.

    Args:
        label: What is transferred.
        total_bytes: How much it is thought to be, or None.
        quiet_s: How long it takes before anything is shown.
    """

    def __init__(self, label: str, total_bytes: int | None, *, quiet_s: float = QUIET_S) -> None:
        self._label, self._total = plain(label), total_bytes
        self._quiet_s = quiet_s
        self._done = 0
        self._since = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """Count bytes that went by."""
        self.reach(self._done + count)

    def reach(self, done: int, total: int | None = None) -> None:
        """Say how many bytes have gone by, and of how many, where that is known only now."""
        self._done, self._total = done, self._total if total is None else total
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done, total=self._total)
        elif time.monotonic() - self._since >= self._quiet_s and sys.stderr.isatty():
            self._begin()

    def _begin(self) -> None:
        from rich import progress
        from rich.console import Console
        from rich.text import Text

        self._bar = progress.Progress(
            progress.BarColumn(bar_width=None),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(compact=True),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.console.print(Text(self._label))
        self._bar.start()
        self._task = self._bar.add_task("", total=self._total, completed=self._done)
