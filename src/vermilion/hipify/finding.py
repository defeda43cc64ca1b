"""What hipify has to say about a place in a source file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong: why it is, and what mends it."""

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

    @property
    def is_left(self) -> bool:
        """Say whether there is still something to do; a note asks for nothing."""
        return not self.fixed and self.level != "note"

    @property
    def can_be_fixed(self) -> bool:
        """Say whether `--fix` mends it."""
        return bool(self.edits)

    def in_file(self, file: str) -> Finding:
        """Give the same finding with another name for the file."""
        return replace(self, file=file)


def order(finding: Finding) -> tuple[str, int, int, str]:
    """Give the key by which findings are listed."""
    return finding.file, finding.line, finding.column, finding.rule


def apply_edits(text: str, edits: list[Edit]) -> str:
    """Give the text with all edits made; where two overlap, the first in the text wins."""
    parts: list[str] = []
    done = 0
    for edit in sorted(set(edits), key=lambda edit: (edit.start, edit.end)):
        if edit.start < done:
            continue
        parts += [text[done : edit.start], edit.text]
        done = edit.end
    parts.append(text[done:])
    return "".join(parts)


def offset_before(offset: int, edits: list[Edit]) -> int:
    """Give where a place of the edited text was before `edits`, sorted and not overlapping."""
    shift = 0
    for edit in edits:
        begin = edit.start + shift
        if offset < begin:
            break
        if offset < begin + len(edit.text):
            return min(edit.start + (offset - begin), max(edit.end - 1, edit.start))
        shift += len(edit.text) - (edit.end - edit.start)
    return offset - shift
