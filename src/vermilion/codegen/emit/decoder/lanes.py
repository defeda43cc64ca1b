"""What goes across the lanes of vectors: other orders of them, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value, splat_integer
from vermilion.codegen.emit.vector_math import VectorMath

Join = Callable[[Value, Value], Value]


def shuffled(f: Function, value: Value, order: list[int], other: Value | None = None) -> Value:
    """Return lanes of a vector, or of two one behind the other, in another order."""
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
    """Return what the lanes of each vector come to, each in its part of the lanes of one."""
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


def narrow_pairs(f: Function, even: Value, odd: Value) -> Value:
    """Round two vectors to bfloat16: one of each in a lane."""
    type_ = f"<{2 * LANES} x bfloat>"
    narrow = f.intrinsic("llvm.x86.avx512bf16.cvtne2ps2bf16.512", type_, [odd, even])
    return shuffled(f, narrow, [lane // 2 + LANES * (lane % 2) for lane in range(2 * LANES)])


def widened_pairs(f: Function, words: Value) -> list[Value]:
    """Return the two bfloat16 of each lane of 32-bit words as two vectors of float32."""
    low = f.binary("shl", words, splat_integer(16, LANES))
    high = f.binary("and", words, splat_integer(-(1 << 16), LANES))
    return [f.convert("bitcast", bits, f"<{LANES} x float>") for bits in (low, high)]


def signed_sum(m: VectorMath, values: Sequence[Value], terms: Sequence[tuple[int, int]]) -> Value:
    """Add up some of the values with their signs: (which, sign); the first is as it is."""
    total = values[terms[0][0]]
    for at, sign in terms[1:]:
        total = (m.add if sign > 0 else m.subtract)(total, values[at])
    return total
