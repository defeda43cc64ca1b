"""How far a batch job is, on stderr: a bar with rate and time left, or a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from vermilion.cli.output import console_on

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from vermilion.batch.work import Status

# Where nobody watches, a log gets a line this often.
_LINE_EVERY_S = 10.0


class Shown(Protocol):
    """Told of the steps before the work, and then of the work."""

    def step(self, stage: str, done: int, total: int) -> None:
        """Note a step of compiling."""

    def watch(self, status: Status) -> None:
        """Note how far the work is."""


@contextmanager
def rates() -> Iterator[Shown]:
    """Show progress until the block ends: bars on a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[words]}"),
    )
    with Bars(*columns, console=console_on(sys.stderr), transient=True) as bars:
        yield _Bars(bars)


def words(status: Status) -> str:
    """Return rate, time left and failures: `41.2/s, 0:17 left, 1 failed`."""
    parts = [f"{status.rate:,.1f}/s"]
    if status.left_s is not None:
        minutes, seconds = divmod(round(status.left_s), 60)
        hours, minutes = divmod(minutes, 60)
        clock = f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
        parts.append(f"{clock} left")
    if status.failed:
        parts.append(f"{status.failed} failed")
    return ", ".join(parts)


class _Bars:
    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def step(self, stage: str, done: int, total: int) -> None:
        self._move(stage, done, total or None, "")

    def watch(self, status: Status) -> None:
        self._move("inputs", status.done, status.total, words(status))

    def _move(self, stage: str, done: int, total: int | None, text: str) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, words=text)
        self._bars.update(self._tasks[stage], completed=done, total=total, words=text)


class _Lines:
    def __init__(self) -> None:
        self._next: float | None = None

    def step(self, stage: str, done: int, total: int) -> None:
        """Nothing: compiling takes seconds."""

    def watch(self, status: Status) -> None:
        now = time.monotonic()
        is_due = self._next is not None and now >= self._next
        if self._next is None or is_due:
            self._next = now + _LINE_EVERY_S
        if not is_due:
            return
        # A short job prints nothing, and never loads what prints.
        console_on(sys.stderr).print(
            f"{status.done:,} of {status.total:,} inputs, {words(status)}", soft_wrap=True
        )
