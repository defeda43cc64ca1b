"""What goes across the lanes of vectors: other orders of them, and what they come to."""

from __future__ import annotations

from collections.abc import Callable

from vermilion.codegen.emit.builder import Function, Value
from vermilion.codegen.emit.decoder.weights import LANES

Join = Callable[[Value, Value], Value]


def shuffled(f: Function, value: Value, order: list[int], other: Value | None = None) -> Value:
    """Give lanes of a vector, or of two one behind the other, in another order."""
    lanes = ", ".join(f"i32 {lane}" for lane in order)
    second = other if other is not None else Value(value.type, "poison")
    element = value.type[value.type.index(" x ") :]
    return f.emit(
        f"<{len(order)}{element}",
        f"shufflevector {value}, {second}, <{len(order)} x i32> <{lanes}>",
    )


def tree(values: list[Value], join: Join) -> Value:
    """Join vectors two by two."""
    while len(values) > 1:
        odd = values[len(values) & ~1 :]
        values = [join(a, b) for a, b in zip(values[::2], values[1::2], strict=False)] + odd
    return values[0]


def reduced(f: Function, rows: list[Value], join: Join) -> Value:
    """Give what the lanes of each vector come to, each in its part of the lanes of one."""
    width = LANES  # of the part that a vector has
    while len(rows) > 1:
        half = width // 2
        parts = LANES // width
        low = [part * width + lane for part in range(2 * parts) for lane in range(half)]
        high = [lane + half for lane in low]
        rows = [
            join(shuffled(f, a, low, b), shuffled(f, a, high, b))
            for a, b in zip(rows[::2], rows[1::2], strict=True)
        ]
        width = half
    (row,) = rows
    while width > 1:
        width //= 2
        row = join(row, shuffled(f, row, [lane ^ width for lane in range(LANES)]))
    return row
