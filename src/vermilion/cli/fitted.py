"""Tables that are never cut: on a narrow terminal the least wanted columns are left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

# A column of words that is folded is of use from so many characters on.
_FOLDED_WIDTH = 28
_GAP = 2


@dataclass(frozen=True)
class Column:
    """A head, and how much the column is wanted: those with the largest numbers go first.

    `folds` is for words, which may stand in several lines; numbers and names never do.
    """

    head: str
    rank: int
    folds: bool = False


@dataclass(frozen=True)
class FittedTable:
    """A table that leaves out columns where it would be cut, and says which.

    The first column stands to the left, and so do those that fold.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.table import Table

        shown = self._fitting(options.max_width)
        table = Table(box=None, pad_edge=False, header_style="bold")
        for at in shown:
            column = self.columns[at]
            table.add_column(
                column.head,
                justify="right" if at and not column.folds else "left",
                no_wrap=not column.folds,
                overflow="fold",
            )
        for row in self.rows:
            table.add_row(*(row[at] for at in shown if at < len(row)))
        yield table
        hidden = [column.head for at, column in enumerate(self.columns) if at not in shown]
        if hidden:
            yield f"no room for: {', '.join(hidden)} (a wider terminal, or --json, has them)"

    def _fitting(self, width: int) -> list[int]:
        wanted = sorted(range(len(self.columns)), key=lambda at: self.columns[at].rank)
        while len(wanted) > 2 and sum(map(self._width, wanted)) > width:
            wanted.pop()
        return sorted(wanted)

    def _width(self, at: int) -> int:
        column = self.columns[at]
        widest = max([len(column.head), *(len(row[at]) for row in self.rows if at < len(row))])
        return (min(widest, _FOLDED_WIDTH) if column.folds else widest) + _GAP
