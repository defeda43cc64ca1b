"""The few numbers of a call that are known only when it is made, read by every kernel.

Rows are sequence-major: row r is position `past + r % length` of sequence `r ÷ length`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.builder import Function, Value

# Words of 64 bits: rows in all, rows of a sequence, tokens in the cache before, tokens it holds.
ROWS, LENGTH, PAST, CAPACITY = range(4)
CONTROL_WORDS = 8


@dataclass(frozen=True)
class Control:
    """Loads the words of the control block inside a kernel."""

    f: Function
    pointer: Value

    def word(self, index: int) -> Value:
        """Give one word."""
        return self.f.load("i64", self.pointer, 8 * index, align=8)

    @property
    def rows(self) -> Value:
        """Rows in all."""
        return self.word(ROWS)

    def bounded(self, end: Value) -> Value:
        """Give the end of a range of rows: those beyond are not there in this call."""
        return self.f.minimum(end, self.rows)
