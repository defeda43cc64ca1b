"""What verbs print: tables, facts and sentences that fit a terminal of any width.

No number and no name is ever cut or broken. On a narrow terminal a table wraps its words, puts long
names on lines of their own, and then leaves out the columns that are wanted least. Sentences are
wrapped between words alone, so that a path stays whole and can be copied.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.segment import Segment
    from rich.text import Text

Kind = Literal["number", "name", "words"]

# Words in a column are readable from so many characters on; a name that is longer than this may
# stand on a line of its own.
_LEAST_WORDS = 24
_LEAST_NAME = 24
# A word among others that is longer may be broken.
_MOST_WHOLE = 32
# Of the last column that is left on a very narrow terminal.
_FEWEST_WORDS = 10
_GAP = 2


@dataclass(frozen=True)
class Column:
    """A head, and how much the column is wanted: those with the largest ranks go first.

    A `number` stands to the right and is never broken, nor is a `name`, to the left; in the first
    column a long one has a line of its own. `words` are wrapped.
    """

    head: str
    rank: int = 0
    kind: Kind = "number"


@dataclass(frozen=True)
class FittedTable:
    """A table that leaves out columns where it would be cut, and says which.

    In a pipe it has all of its columns, however wide they are. Without a head on any column there
    is no line of heads.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines for a width."""
        width = options.max_width
        shown = self._shown(width, keeps_all=not _has_width(console))
        widths = self._widths(shown, width)
        if any(column.head for column in self.columns):
            yield from self._row([column.head for column in self.columns], shown, widths, "bold")
        for row in self.rows:
            yield from self._row(row, shown, widths)
        hidden = [
            " ".join(column.head.split())
            for at, column in enumerate(self.columns)
            if at not in shown
        ]
        if hidden:
            words = f"no room for: {', '.join(hidden)} (a wider terminal, or --json, has them)"
            yield Prose(words)

    def _shown(self, width: int, *, keeps_all: bool) -> list[int]:
        wanted = sorted(range(len(self.columns)), key=lambda at: self.columns[at].rank)
        while not keeps_all and len(wanted) > 2 and self._room(map(self._least, wanted)) > width:
            wanted.pop()
        return sorted(wanted)

    @staticmethod
    def _room(widths: Iterable[int]) -> int:
        found = list(widths)
        return sum(found) + _GAP * (len(found) - 1)

    def _natural(self, at: int) -> int:
        cells = (_width(row[at]) for row in self.rows if at < len(row))
        return max([_width(self.columns[at].head), *cells])

    def _longest_word(self, at: int) -> int:
        """Return the width of the longest word that is not to be broken."""
        cells = (str(row[at]) for row in self.rows if at < len(row))
        words = (_width(word) for cell in cells for word in cell.split())
        return max((width for width in words if width <= _MOST_WHOLE), default=0)

    def _least(self, at: int) -> int:
        natural, kind = self._natural(at), self.columns[at].kind
        if kind == "words":
            return min(natural, max(_LEAST_WORDS, self._longest_word(at)))
        return min(natural, _LEAST_NAME) if kind == "name" and at == 0 else natural

    def _widths(self, shown: Sequence[int], width: int) -> dict[int, int]:
        """Return each column's width: what is left over goes to names first, then to words."""
        widths = {at: self._least(at) for at in shown}
        spare = width - self._room(widths.values())
        for at in sorted(shown, key=lambda at: self.columns[at].kind == "words"):
            more = min(max(0, spare), self._natural(at) - widths[at])
            if self.columns[at].kind == "words":
                # Two columns of words share what is left.
                rest = [o for o in shown if o >= at and self.columns[o].kind == "words"]
                fair = max(0, spare) // len(rest)
                others = sum(self._natural(o) - widths[o] for o in rest[1:])
                more = min(more, max(fair, spare - others))
            widths[at] += more
            spare -= more
        for at in reversed(shown):
            if spare < 0 and self.columns[at].kind == "words":
                less = min(-spare, widths[at] - min(widths[at], _FEWEST_WORDS))
                widths[at] -= less
                spare += less
        return widths

    def _row(
        self,
        row: Sequence[str | Text],
        shown: Sequence[int],
        widths: dict[int, int],
        style: str = "",
    ) -> Iterator[Text]:
        from rich.text import Text

        blank = Text("")
        cells = []
        for at in shown:
            cell = row[at] if at < len(row) else ""
            text = Text(cell, style=style) if isinstance(cell, str) else cell
            wraps = self.columns[at].kind == "words"
            # At the end of a line a path may go on to the right; elsewhere it would be in the way.
            breaks = at != shown[-1]
            lines = wrapped(text, widths[at], breaks=breaks) if wraps else text.split("\n")
            cells.append(list(lines) or [blank])
        first = cells[0]
        if any(_width(line) > widths[shown[0]] for line in first):
            yield from (_whole(line) for line in first)
            if not any(line.plain for lines in cells[1:] for line in lines):
                return
            cells[0] = [blank]
        for number in range(max(map(len, cells))):
            yield self._line(
                [lines[number] if number < len(lines) else blank for lines in cells], shown, widths
            )

    def _line(self, cells: Sequence[Text], shown: Sequence[int], widths: dict[int, int]) -> Text:
        from rich.text import Text

        line = Text("")
        for at, cell in zip(shown, cells, strict=True):
            pad = " " * (widths[at] - _width(cell))
            before, after = (pad, "") if self.columns[at].kind == "number" else ("", pad)
            line.append(before)
            line.append_text(cell)
            line.append(after + " " * _GAP)
        return _whole(line)


@dataclass(frozen=True)
class Facts:
    """Names and what they are, one below the other; a long value goes on below itself.

    A path has one line, blanks in it or not.
    """

    rows: Sequence[tuple[str, str | Text | PurePath]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines for a width."""
        from rich.text import Text

        indent = max((_width(name) for name, _ in self.rows), default=0) + _GAP
        for name, value in self.rows:
            text = value if isinstance(value, Text) else Text(str(value))
            room = max(_LEAST_WORDS, options.max_width - indent)
            whole = isinstance(value, PurePath)
            for number, line in enumerate([text] if whole else wrapped(text, room)):
                head = name if number == 0 else ""
                label = Text(head, style="bold")
                yield _whole(Text.assemble(label, " " * (indent - _width(head)), line))


@dataclass(frozen=True)
class Definitions:
    """Words and what they mean, side by side; a long word has a line of its own."""

    rows: Sequence[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines for a width."""
        from rich.text import Text

        most = max((_width(name) for name, _ in self.rows), default=0)
        indent = min(most, _LEAST_NAME) + 2 * _GAP
        room = max(_LEAST_WORDS, options.max_width - indent)
        for name, meaning in self.rows:
            head = " " * _GAP + name
            for number, line in enumerate(wrapped(Text(meaning), room)):
                if number == 0 and _width(head) + _GAP > indent:
                    yield _whole(Text(head))
                    head = ""
                before = (head if number == 0 else "").ljust(indent)
                yield _whole(Text.assemble(before, line))


@dataclass(frozen=True)
class Prose:
    """Sentences, wrapped between words; lines below the first are indented as that is."""

    text: str | Text

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines for a width."""
        from rich.text import Text

        text = Text(self.text) if isinstance(self.text, str) else self.text
        for paragraph in text.split("\n", allow_blank=True):
            plain = paragraph.plain
            indent = len(plain) - len(plain.lstrip(" "))
            for line in wrapped(paragraph, max(_FEWEST_WORDS, options.max_width), indent=indent):
                yield _whole(line)


@dataclass(frozen=True)
class Verbatim:
    """A text that is printed as it is, however wide: a script, a file."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        from rich.text import Text

        for line in self.text.split("\n"):
            yield _whole(Text(line))


def wrapped(text: Text, width: int, *, indent: int = 0, breaks: bool = False) -> Iterator[Text]:
    """Yield a text's lines: between words, and inside one that is wider only if `breaks`."""
    for paragraph in text.split("\n", allow_blank=True):
        rest, begin = paragraph, 0
        while True:
            cut = _cut(rest.plain, width - begin, breaks)
            if cut >= len(rest.plain):
                yield _indented(rest, begin)
                break
            line, rest = rest.divide([cut])
            line.rstrip()
            yield _indented(line, begin)
            rest = rest[len(rest.plain) - len(rest.plain.lstrip(" ")) :]
            if not rest.plain:
                break
            begin = indent


def _indented(line: Text, blanks: int) -> Text:
    from rich.text import Text

    return Text.assemble(" " * blanks, line) if blanks else line


_WORD = re.compile(r" *[^ ]+")


def _cut(plain: str, width: int, breaks: bool) -> int:
    """Return how many characters of a text stand on the first line."""
    from rich.cells import cell_len

    end = 0
    for word in _WORD.finditer(plain):
        if cell_len(plain[: word.end()]) > width:
            if end or not breaks:
                return end or word.end()
            fits = 1
            while cell_len(plain[: fits + 1]) <= width:
                fits += 1
            return fits
        end = word.end()
    return len(plain)


def _width(cell: str | Text) -> int:
    from rich.cells import cell_len

    plain = cell if isinstance(cell, str) else cell.plain
    return max(map(cell_len, plain.split("\n")))


def _whole(line: Text) -> Text:
    """Return a line that rich neither wraps nor cuts."""
    line.no_wrap, line.overflow, line.end = True, "ignore", "\n"
    return line


def columns_given() -> int | None:
    """Return the width that the variable COLUMNS says; None where it says none, as 0 does."""
    text = os.environ.get("COLUMNS", "").strip()
    is_number = text.isascii() and text.isdigit() and len(text) < 6
    return (int(text) or None) if is_number else None


def _has_width(console: Console) -> bool:
    return console.is_terminal or columns_given() is not None


def fitted(view: RenderableType) -> RenderableType:
    """Return a view whose sentences are wrapped between words alone."""
    from rich.console import Group
    from rich.text import Text

    if isinstance(view, Group):
        return Group(*map(fitted, view.renderables))
    return Prose(view) if isinstance(view, str | Text) else view


# What moves a terminal's cursor or turns the direction of writing stands in no name.
# Source: Unicode Standard Annex #9, "Directional Formatting Characters".
_HIDDEN = {
    code: repr(chr(code))[1:-1]
    for code in (*range(9), *range(11, 32), *range(127, 160), 0x61C, 0x200E, 0x200F,
                 *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}  # fmt: skip


def visible(text: str) -> str:
    """Return a text whose control characters can be seen, and do nothing."""
    return text.translate(_HIDDEN)


def draw(console: Console, view: RenderableType) -> None:
    """Print a view: no line is cut, and none ends in blanks."""
    from rich.segment import Segment, Segments

    lines = Segment.split_lines(console.render(fitted(view)))
    ended: list[Segment] = []
    for line in lines:
        shown = [Segment(visible(one.text), one.style, one.control) for one in line]
        ended += [*_without_blanks(shown), Segment.line()]
    console.print(Segments(ended), end="", crop=False, soft_wrap=True)


def _without_blanks(line: Sequence[Segment]) -> Sequence[Segment]:
    from rich.segment import Segment

    kept = list(line)
    while kept and not kept[-1].text.strip(" "):
        kept.pop()
    if kept:
        last = kept[-1]
        kept[-1] = Segment(last.text.rstrip(" "), last.style, last.control)
    return kept
