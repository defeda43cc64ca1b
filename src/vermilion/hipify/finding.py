"""What hipify has to say about a place in a source file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong: why it is, and what fixes it."""

    id: str
    level: Level
    title: str
    why: str
    fix: str


@dataclass(frozen=True)
class Edit:
    """A change of a text: what stood from `start` to `end` becomes `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Finding:
    """A rule that a place breaks. Line and column count from 1 in the file as it was read.

    `edits` are the mechanical fix, in the translated text, empty where a person must decide.
    `name` is the name that an unknown-name finding is about.
    """

    rule: str
    level: Level
    file: str
    line: int
    column: int
    message: str
    hint: str = ""
    edits: tuple[Edit, ...] = ()
    fixed: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        """Replace bytes of the source that are no text: a message is printed and sent as JSON."""
        if not self.message.isprintable():
            text = self.message.encode("utf-8", errors="replace").decode("utf-8")
            object.__setattr__(self, "message", text)
        if not self.hint.isprintable():
            text = self.hint.encode("utf-8", errors="replace").decode("utf-8")
            object.__setattr__(self, "hint", text)

    @property
    def is_left(self) -> bool:
        """Say whether there is still something to do; a note asks for nothing."""
        return not self.fixed and self.level != "note"

    @property
    def can_be_fixed(self) -> bool:
        """Say whether `--fix` fixes it."""
        return bool(self.edits)


def order(finding: Finding) -> tuple[str, int, int, str]:
    """Return the key by which findings are listed."""
    return finding.file, finding.line, finding.column, finding.rule


def without_overlaps(edits: Iterable[Edit]) -> list[Edit]:
    """Return the edits in the order of the text; of two that overlap, the first in it."""
    kept: list[Edit] = []
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end)):
        if not kept or edit.start >= kept[-1].end:
            kept.append(edit)
    return kept


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return the text with the edits made, which are in its order and do not overlap."""
    parts: list[str] = []
    done = 0
    for edit in edits:
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    parts.append(text[done:])
    return "".join(parts)


class OffsetMap:
    """Where places of an edited text were before; the edits are in order and do not overlap."""

    def __init__(self, edits: Sequence[Edit]) -> None:
        self._edits = edits
        self._begins: list[int] = []
        self._shifts: list[int] = []
        shift = 0
        for edit in self._edits:
            self._begins.append(edit.start + shift)
            shift += len(edit.text) - (edit.end - edit.start)
            self._shifts.append(shift)

    def before(self, offset: int) -> int:
        """Return the offset in the text before; a place in new text is one in what it replaced."""
        last = bisect_right(self._begins, offset) - 1
        if last < 0:
            return offset
        edit, into = self._edits[last], offset - self._begins[last]
        if into < len(edit.text):
            return min(edit.start + into, max(edit.end - 1, edit.start))
        return offset - self._shifts[last]
