"""The few numbers of a call that are known only when it is made, read by every kernel.

Rows are sequence-major: row r is position `past + r % length` of sequence `r ÷ length`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.values import Value

# Words of 64 bits: rows in all, rows of a sequence, tokens in the cache before, tokens it holds,
# which row of the cosines and sines is that of position 0.
ROWS, LENGTH, PAST, CAPACITY, TURNS = range(5)
CONTROL_WORDS = 8


@dataclass(frozen=True)
class Control:
    """Loads the words of the control block inside a kernel."""

    f: Function
    pointer: Value

    def word(self, index: int) -> Value:
        """Return one word."""
        return self.f.load("i64", self.pointer, 8 * index, align=8)

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
