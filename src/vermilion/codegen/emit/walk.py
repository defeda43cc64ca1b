"""Walking tensors: a kernel's units, dimensions from a unit's number, elements of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Index, Module, Value
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, View


def begin_kernel(
    module: Module, name: str, count: int
) -> tuple[Function, list[Value], tuple[Value, Value]]:
    """Begin `void(arguments, begin, end)`; return it, `count` pointers, and the range of units."""
    f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
    args, begin, end = f.arguments
    return f, [f.load("ptr", args, 8 * i, align=8) for i in range(count)], (begin, end)


@dataclass(frozen=True)
class Access:
    """How a tensor is walked: its storage type and a stride in elements for each dimension.

    Vectors run along the last dimension. A stride of 0 repeats.
    """

    storage: Storage
    strides: tuple[int, ...]

    def at(self, f: Function, base: Value, where: Sequence[Index]) -> Value:
        """Return the pointer to the element at these indices, of the first dimensions or of all."""
        size = STORAGE_BYTES[self.storage]
        known, offset = 0, None
        for index, stride in zip(where, self.strides, strict=False):
            if isinstance(index, int):
                known += index * stride * size
            elif stride:
                step = f.multiply(index, stride * size)
                offset = step if offset is None else f.add(offset, step)
        if offset is None:
            return f.at(base, known)
        return f.at(base, f.add(offset, known))

    def load(self, arithmetic: Arithmetic, place: Value, mask: Value | None) -> Value:
        """Load one vector."""
        return arithmetic.load_along(self.storage, place, self.strides[-1], mask)

    def store(self, arithmetic: Arithmetic, value: Value, place: Value, mask: Value | None) -> None:
        """Store one vector."""
        arithmetic.store_along(self.storage, value, place, self.strides[-1], mask)


def matrices(view: View, shape: Sequence[int]) -> Access:
    """Return how `view` is walked when it broadcasts to `shape`; the last two axes are matrices."""
    *outer, row, column = view.broadcast(shape).strides
    row = row if shape[-2] > 1 else 0
    if shape[-1] == 1 and column not in (0, 1):
        column = 0
    assert column in (0, 1), "columns of an operand lie side by side or repeat"
    return Access(view.storage, (*outer, row, column))


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
