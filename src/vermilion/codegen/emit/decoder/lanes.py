"""What goes across the lanes of vectors: other orders of them, and what they come to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value, float_constant, splat_integer
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


def looked_up(f: Function, table: Sequence[float], codes: Value) -> Value:
    """Return the table's numbers of the low four bits of every lane, in float32."""
    type_ = f"<{LANES} x float>"
    if f.module.has_scale:  # of AVX-512, like the permutation of sixteen lanes
        numbers = Value(type_, f"<{', '.join(str(float_constant(one)) for one in table)}>")
        return f.intrinsic("llvm.x86.avx512.permvar.sf.512", type_, [numbers, codes])
    code = f.binary("and", codes, splat_integer(LANES - 1, LANES))
    first = int(table[0])
    if list(table) == list(range(first, first + LANES)):
        return f.convert("sitofp", f.binary("add", code, splat_integer(first, LANES)), type_)
    # Bytes of a table: of each lane's lowest, and what the others find is shifted out.
    half, bytes_ = LANES // 2, f"<{2 * LANES} x i8>"
    numbers = Value(
        bytes_, f"<{', '.join(f'i8 {int(table[at % 16])}' for at in range(2 * LANES))}>"
    )
    found = []
    for at in (0, half):
        part = f.convert("bitcast", shuffled(f, code, list(range(at, at + half))), bytes_)
        one = f.intrinsic("llvm.x86.avx2.pshuf.b", bytes_, [numbers, part])
        found.append(f.convert("bitcast", one, f"<{half} x i32>"))
    both = shuffled(f, found[0], list(range(LANES)), found[1])
    up = f.binary("shl", both, splat_integer(24, LANES))
    return f.convert("sitofp", f.binary("ashr", up, splat_integer(24, LANES)), type_)


def signed_sum(m: VectorMath, values: Sequence[Value], terms: Sequence[tuple[int, int]]) -> Value:
    """Add up some of the values with their signs: (which, sign); the first is as it is."""
    total = values[terms[0][0]]
    for at, sign in terms[1:]:
        total = (m.add if sign > 0 else m.subtract)(total, values[at])
    return total
