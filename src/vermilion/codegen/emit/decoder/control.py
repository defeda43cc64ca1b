"""The few numbers of a call that are known only when it is made, read by every kernel.

Rows are sequence-major: row r is of sequence `r ÷ length`, and `r % length` positions behind those
that the sequence had before. Sequences may be of several lengths, each with its own room in the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.values import Value

# Words of 64 bits: rows in all, rows of a sequence.
ROWS, LENGTH = range(2)
# From this word on, a line of words for each sequence: tokens in the cache before, tokens that it
# has room for, where that room begins (in tokens of the cache), and which row of the cosines and
# sines is that of position 0.
SEQUENCES = 8
PAST, CAPACITY, ROOM, TURNS = range(4)
LINE_WORDS = 4
MOST_SEQUENCES = 512
CONTROL_WORDS = SEQUENCES + LINE_WORDS * MOST_SEQUENCES


@dataclass(frozen=True)
class Sequence:
    """Loads the words of a sequence's line inside a kernel."""

    f: Function
    line: Value

    def word(self, index: int) -> Value:
        """Return one word."""
        return self.f.load("i64", self.line, 8 * index, align=8)


@dataclass(frozen=True)
class Control:
    """Loads the words of the control block inside a kernel."""

    f: Function
    pointer: Value

    def word(self, index: int) -> Value:
        """Return one word."""
        return self.f.load("i64", self.pointer, 8 * index, align=8)

    def sequence(self, number: Value) -> Sequence:
        """Return a sequence's line."""
        lines = self.f.at(self.pointer, 8 * SEQUENCES)
        return Sequence(self.f, self.f.at(lines, self.f.multiply(number, 8 * LINE_WORDS)))

    @property
    def rows(self) -> Value:
        """Rows in all."""
        return self.word(ROWS)

    def share(self, begin: Value, end: Value, units: int, there: Value) -> tuple[Value, Value]:
        """Return what of the `there` units of this call is in a range of the `units` of any call.

        The same part of them: a worker's share would else be all that is there, or nothing.
        """
        f = self.f
        low, high = (f.divide(f.multiply(edge, there), units) for edge in (begin, end))
        return low, high
