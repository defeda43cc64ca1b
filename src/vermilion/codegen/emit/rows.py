"""Loops over a row of a tensor: several vectors at a time, then single ones, then a tail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.values import Index, Value, constant
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Operand, apply
from vermilion.ir.symbolic import is_known

# Sums that run side by side, so that an addition does not wait for the one before.
SUMS = 4

# position of the vector, mask of its lanes (None for all), which of the sums it belongs to
Body = Callable[[Value, Value | None, int], None]


def each_vector(arithmetic: Arithmetic, size: Index) -> Iterator[tuple[Value, Value | None]]:
    """Yield where a vector of `size` elements begins, and the mask of its lanes, None for all.

    The body is written once in a loop over the full vectors, and once for the rest if there is one.
    """
    f, lanes = arithmetic.f, arithmetic.lanes
    if not isinstance(size, int):
        size = f.index(size)
        end = f.binary("and", size, constant("i64", -lanes))
        with f.loop(0, end, lanes) as i:
            yield i, None
        rest = f.subtract(size, end)
        with f.when(f.compare("ne", rest, constant("i64", 0))):
            yield end, arithmetic.tail_mask(rest)
        return
    whole = size - size % lanes
    if whole:
        with f.loop(0, whole, lanes) as i:
            yield i, None
    if size % lanes:
        yield f.index(whole), arithmetic.tail_mask(size % lanes)


def for_vectors(f: Function, arithmetic: Arithmetic, size: Index, body: Body) -> None:
    """Run `body` for every vector of a row of `size` elements, some sums side by side."""
    lanes = arithmetic.lanes
    block = SUMS * lanes
    if not isinstance(size, int):
        end = f.binary("and", f.index(size), constant("i64", -block))
        with f.loop(0, end, block) as i:
            for number in range(SUMS):
                body(f.add(i, number * lanes), None, number)
        for at, mask in each_vector(arithmetic, f.subtract(size, end)):
            body(f.add(end, at), mask, 0)
        return
    many = size - size % block
    whole = size - size % lanes
    if many:
        with f.loop(0, many, block) as i:
            for number in range(SUMS):
                body(f.add(i, number * lanes), None, number)
    for number, start in enumerate(range(many, whole, lanes)):
        body(f.index(start), None, number)
    if size % lanes:
        body(f.index(whole), arithmetic.tail_mask(size % lanes), (whole - many) // lanes % SUMS)


class Totals:
    """Sums or extremes gathered over a row, several side by side, joined at the end."""

    def __init__(
        self, arithmetic: Arithmetic, combine: str, start: float, count: int = SUMS
    ) -> None:
        self._arithmetic = arithmetic
        self._combine = combine
        self._start = arithmetic.math.number(start)
        self._slots = [arithmetic.f.slot(self._start) for _ in range(count)]

    def take(self, number: int, value: Value, mask: Value | None = None) -> None:
        """Add a vector; lanes outside the mask count as nothing."""
        if mask is not None:
            value = self._arithmetic.f.select(mask, value, self._start)
        slot = self._slots[number]
        slot.set(self._join(value, slot.get()))

    def _join(self, a: Value, b: Value) -> Value:
        values = (a, b)
        node = apply(self._combine, Operand(0), Operand(1))
        return self._arithmetic.evaluate(node, lambda index: values[index])

    def vector(self) -> Value:
        """Return the lane-by-lane total."""
        found = [slot.get() for slot in self._slots]
        while len(found) > 1:
            joined = [self._join(a, b) for a, b in zip(found[::2], found[1::2], strict=False)]
            found = joined + found[len(joined) * 2 :]
        return found[0]

    def splat(self) -> Value:
        """Return the total of all lanes, in every lane."""
        return across(self._arithmetic, self._combine, self.vector())


def across(arithmetic: Arithmetic, combine: str, vector: Value) -> Value:
    """Return the total of a vector's lanes in every lane, halves joined with halves."""
    f, lanes = arithmetic.f, arithmetic.lanes
    distance = lanes // 2
    while distance:
        order = ", ".join(f"i32 {i ^ distance}" for i in range(lanes))
        other = f.emit(vector.type, f"shufflevector {vector}, {vector}, <{lanes} x i32> <{order}>")
        values = (vector, other)
        node = apply(combine, Operand(0), Operand(1))
        vector = arithmetic.evaluate(node, lambda index, v=values: v[index])  # type: ignore[misc]
        distance //= 2
    return vector


def element(f: Function, storage: Storage, row: Value, at: Value, stride: int = 1) -> Value:
    """Return the pointer to an element of a row."""
    return f.at(row, f.multiply(at, stride * STORAGE_BYTES[storage]))


def load(
    arithmetic: Arithmetic,
    storage: Storage,
    row: Value,
    at: Value,
    stride: int,
    mask: Value | None,
) -> Value:
    """Load the vector of a row that begins at element `at`."""
    place = element(arithmetic.f, storage, row, at, stride)
    return arithmetic.load_along(storage, place, stride, mask)


def store(
    arithmetic: Arithmetic,
    storage: Storage,
    value: Value,
    row: Value,
    at: Value,
    stride: int,
    mask: Value | None,
) -> None:
    """Store the vector of a row that begins at element `at`."""
    place = element(arithmetic.f, storage, row, at, stride)
    arithmetic.store_along(storage, value, place, stride, mask)


def outer_rows(
    f: Function,
    unit: Value,
    dims: Sequence[tuple[int, tuple[int, ...]]],
    pointers: Sequence[Value],
    sizes: Sequence[int],
) -> list[Value]:
    """Move pointers to the row of number `unit`; each dimension is (size, strides in elements)."""
    moved = list(pointers)
    rest = unit
    for at, (size, strides) in enumerate(reversed(dims)):
        index = rest if at == len(dims) - 1 else f.remainder(rest, size)
        rest = f.divide(rest, size)
        moved = [
            f.at(pointer, f.multiply(index, stride * item))
            if not is_known(stride) or stride
            else pointer
            for pointer, stride, item in zip(moved, strides, sizes, strict=True)
        ]
    return moved
