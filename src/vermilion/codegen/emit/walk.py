"""Walking tensors in row kernels: outer dimensions from a unit's number, operands along a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Index, Value
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, View


@dataclass(frozen=True)
class Matrices:
    """How a batch of matrices is walked: strides of the outer dimensions, row and column.

    Strides count elements; 0 repeats.
    """

    storage: Storage
    outer: tuple[int, ...]
    row: int
    column: int

    def moved(self, f: Function, base: Value, position: Sequence[Index], row: Index) -> Value:
        """Return the pointer to a row of the matrix at `position`."""
        size = STORAGE_BYTES[self.storage]
        offset: Index = 0
        for index, stride in zip(position, self.outer, strict=True):
            if stride:
                offset = f.add(offset, f.multiply(index, stride * size))
        if self.row:
            offset = f.add(offset, f.multiply(row, self.row * size))
        return f.at(base, offset)

    def load(
        self,
        f: Function,
        arithmetic: Arithmetic,
        base: Value,
        at: tuple[int, int],
        mask: Value | None,
    ) -> Value:
        """Load one vector at a constant row and column from `base`."""
        row, column = at
        place = f.at(base, (row * self.row + column * self.column) * STORAGE_BYTES[self.storage])
        if self.column == 0:
            return arithmetic.load_splat(self.storage, place)
        return arithmetic.load(self.storage, place, mask=mask)


def matrices(view: View, shape: Sequence[int]) -> Matrices:
    """Return how `view` is walked when it broadcasts to `shape`; the last two axes are matrices."""
    wide = view.broadcast(shape)
    *outer, row, column = wide.strides
    row = row if shape[-2] > 1 else 0
    if shape[-1] == 1 and column not in (0, 1):
        column = 0
    assert column in (0, 1), "columns of an operand lie side by side or repeat"
    return Matrices(view.storage, tuple(outer), row, column)


def positions(f: Function, number: Value, sizes: Sequence[int]) -> list[Index]:
    """Return the index in each dimension of the unit `number`; the last dimension runs fastest."""
    result: list[Index] = []
    rest = number
    for at, size in enumerate(reversed(sizes)):
        if size == 1:
            result.insert(0, 0)
            continue
        last = all(s == 1 for s in sizes[: len(sizes) - 1 - at])
        result.insert(0, rest if last else f.remainder(rest, size))
        rest = f.divide(rest, size)
    return result


def count(sizes: Sequence[int]) -> int:
    """Return the number of positions."""
    return math.prod(sizes)
