"""Walking tensors: a kernel's units, dimensions from a unit's number, elements of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import Index, Value, constant
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, View
from vermilion.ir.formula import Formula
from vermilion.ir.symbolic import is_known, is_one


def begin_kernel(
    module: Module, name: str, count: int
) -> tuple[Function, list[Value], tuple[Value, Value]]:
    """Begin `void(arguments, begin, end)`; return it, `count` pointers, and the range of units."""
    f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
    args, begin, end = f.arguments
    f.take_sizes(args, 8 * count)
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
            if isinstance(index, int) and (index == 0 or is_known(stride)):
                known += index * stride * size
            elif not is_known(stride) or stride:
                step = f.multiply(index, stride * size)
                offset = step if offset is None else f.add(offset, step)
        if offset is None:
            return f.at(base, known)
        return f.at(base, f.add(offset, known))

    def load(self, arithmetic: Arithmetic, place: Value, mask: Value | None) -> Value:
        """Load one vector."""
        return arithmetic.load_along(self.storage, place, self.strides[-1], mask)

    def store(
        self, arithmetic: Arithmetic, value: Value, place: Value, mask: Value | None,
        *, is_exact: bool = False,
    ) -> None:  # fmt: skip
        """Store one vector; `is_exact` keeps what is subnormal in bfloat16."""
        stride = self.strides[-1]
        arithmetic.store_along(self.storage, value, place, stride, mask, is_exact=is_exact)


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
        if is_one(size):
            result.insert(0, 0)
            continue
        last = all(is_one(s) for s in sizes[: len(sizes) - 1 - at])
        result.insert(0, rest if last else f.remainder(rest, size))
        rest = f.divide(rest, size)
    return result


def patches(
    f: Function, first: Index, last: Index, height: int, call: Callable[[int, Value], None]
) -> None:
    """Call for every patch of rows: full ones in a loop, then the rest.

    What is left of rows that only a run has is done in powers of two: a function for each height
    would be as many as a patch has rows.
    """
    if isinstance(first, int) and isinstance(last, int):
        whole = last - (last - first) % height
        if whole > first:
            with f.loop(first, whole, height) as row:
                call(height, row)
        if last > whole:
            call(last - whole, f.index(whole))
        return
    end = f.subtract(last, f.remainder(f.subtract(last, first), height))
    with f.loop(first, end, height) as row:
        call(height, row)
    left, at = f.subtract(last, end), f.slot(end)
    size = 1 << (height - 1).bit_length() >> 1
    while size:
        bit = f.binary("and", left, constant("i64", size))
        with f.when(f.compare("ne", bit, constant("i64", 0))):
            call(size, at.get())
            at.set(f.add(at.get(), size))
        size //= 2


def along(
    f: Function,
    lanes: int,
    columns: Index,
    width: int,
    call: Callable[[int, Index, Value], None],
) -> None:
    """Call for every block of `width` vectors of columns: how many, the last's lanes, the first.

    Full ones in a loop, then the rest; 0 lanes are all. Of columns that only a run has, what is no
    full block is done vector by vector.
    """
    if isinstance(columns, int):
        vectors, tail = -(-columns // lanes), columns % lanes
        full, rest = divmod(vectors, width)
        if tail and not rest:
            full, rest = full - 1, width
        if full:
            with f.loop(0, full * width, width) as vector:
                call(width, 0, vector)
        if rest:
            call(rest, tail, f.index(full * width))
        return
    count = f.divide(columns, lanes)
    end = f.subtract(count, f.remainder(count, width))
    with f.loop(0, end, width) as vector:
        call(width, 0, vector)
    if width > 1:
        with f.loop(end, count) as vector:
            call(1, 0, vector)
    left = f.remainder(columns, lanes)
    with f.when(f.compare("ne", left, constant("i64", 0))):
        call(1, left, count)


def has_sizes(part: object) -> bool:
    """Say whether a spec has sizes that only a run has."""
    if isinstance(part, tuple):
        return any(map(has_sizes, part))
    if is_dataclass(part) and not isinstance(part, Formula):
        return any(has_sizes(getattr(part, field.name)) for field in fields(part))
    return isinstance(part, Formula)
