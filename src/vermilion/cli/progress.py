"""Progress bars on stderr, for people who watch."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID


class Bars:
    """A `vermilion.progress.Progress` with one bar a stage, gone when the work is done.

    Draws nothing where stderr is not a terminal: logs would fill with its frames.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._drawn: RichProgress | None = None
        self._bars: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Move the bar of `stage`; total 0 means unknown."""
        if not self._console.is_terminal:
            return
        if self._drawn is None:
            self._drawn = _rich_progress(self._console)
            self._drawn.start()
        known = total or None
        if stage not in self._bars:
            self._bars[stage] = self._drawn.add_task(stage, total=known)
        self._drawn.update(self._bars[stage], completed=done, total=known)

    def __enter__(self) -> Bars:
        """Start with no bar; the first call draws one."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wipe the bars, so that what follows stands on clean lines."""
        if self._drawn is not None:
            self._drawn.stop()
            self._drawn = None


def _rich_progress(console: Console) -> RichProgress:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)
