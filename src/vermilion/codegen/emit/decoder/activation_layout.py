"""Rows of activations in the form that a product reads.

`int8`: signed bytes, then a float32 scale for each block, then for each block an int32 that takes
the zero point of the weights off the sum. `bf16` and `f32`: the numbers side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.lanes import reduced, shuffled, tree
from vermilion.codegen.emit.values import Value, splat_integer
from vermilion.codegen.tensor import Storage

ActivationKind = Literal["int8", "bf16", "bfp16", "f32"]
_LINE = 64
# Values that share an exponent, and the bits of a magnitude: AMD's block floating point
# (Ryzen AI documentation, "BFP16": groups of eight, a shared exponent, eight bits each).
_BFP_GROUP = 8
# Blocks that are rounded together, and up to which length: they are held in registers.
_TOGETHER, _SHORT_BLOCK = 4, 32


@dataclass(frozen=True)
class ActivationLayout:
    """How `width` activations of a row are written for a product.

    `block` is for `int8`: how many share a scale; `zero` is what the weights' codes count from,
    1 where each block of weights has its own.
    """

    kind: ActivationKind
    width: int
    block: int = 0
    zero: int = 0

    @property
    def blocks(self) -> int:
        """Blocks of a row."""
        return -(-self.width // self.block) if self.kind == "int8" else 0

    @property
    def scales_at(self) -> int:
        """Bytes before the scales."""
        return _aligned(self.blocks * self.block)

    @property
    def zeros_at(self) -> int:
        """Bytes before what takes the zero points off."""
        return self.scales_at + _aligned(4 * self.blocks)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        match self.kind:
            case "int8":
                return _apart(self.zeros_at + _aligned(4 * self.blocks))
            case "bf16" | "bfp16":
                return _apart(2 * self.width)
            case "f32":
                return _apart(4 * self.width)

    @property
    def storage(self) -> Storage:
        """Storage type of what lies side by side."""
        return {"int8": "s8", "bf16": "bf16", "bfp16": "bf16", "f32": "f32"}[self.kind]  # type: ignore[return-value]


def _aligned(size: int) -> int:
    return -(-size // _LINE) * _LINE


def _apart(size: int) -> int:
    """Return the bytes of a row: not a multiple of what would put the rows of a tile in one set.

    A first-level cache has as many bytes a way as a page has; twelve rows that are read side by
    side would otherwise push each other out.
    """
    return _aligned(size) + (_LINE if size % 512 == 0 else 0)


def write_prepared(
    f: Function, arithmetic: Arithmetic, form: ActivationLayout, source: Value, target: Value
) -> None:
    """Write one row: `source` is float32, zero behind its end up to the last block's."""
    if form.kind == "int8":
        # Short blocks four at a time: what is reduced over lanes is reduced for all of them.
        together = form.blocks - form.blocks % _TOGETHER if form.block <= _SHORT_BLOCK else 0
        if together:
            with f.loop(0, together, _TOGETHER) as block:
                _Quantize(f, arithmetic, form, _TOGETHER).write(source, target, block)
        with f.loop(together, form.blocks) as block:
            _Quantize(f, arithmetic, form, 1).write(source, target, block)
        return
    size = 4 if form.kind == "f32" else 2
    with f.loop(0, form.width, arithmetic.lanes) as at:
        value = arithmetic.load("f32", f.at(source, f.multiply(at, 4)))
        write_vector(f, arithmetic, form, value, f.at(target, f.multiply(at, size)))


def write_vector(
    f: Function, arithmetic: Arithmetic, form: ActivationLayout, value: Value, target: Value
) -> None:
    """Write sixteen numbers of a row, where they need nothing of the others."""
    if form.kind == "bfp16":
        value = _shared_along_lanes(f, arithmetic, value)
    arithmetic.store(form.storage, value, target)


class _Quantize:
    """Rounding of one block, or four, to whole numbers of 1/127 of the largest."""

    def __init__(
        self, f: Function, arithmetic: Arithmetic, form: ActivationLayout, blocks: int
    ) -> None:
        self.f = f
        self.arithmetic = arithmetic
        self.form = form
        self.blocks = blocks
        self.vectors = form.block // arithmetic.lanes
        self.integers = f"<{arithmetic.lanes} x i32>"

    def write(self, source: Value, target: Value, block: Value) -> None:
        """Write the codes, the scales, and what takes the zero points off."""
        f, m, lanes = self.f, self.arithmetic.math, self.arithmetic.lanes
        start = f.at(source, f.multiply(block, 4 * self.form.block))
        values = [
            [
                self.arithmetic.load("f32", f.at(start, 4 * lanes * (b * self.vectors + v)))
                for v in range(self.vectors)
            ]
            for b in range(self.blocks)
        ]
        sizes = [tree([m.unary("fabs", x) for x in one], m.maximum) for one in values]
        largest = reduced(f, sizes, m.maximum)
        is_zero = f.compare_floats("oeq", largest, m.number(0.0))
        inverse = f.select(is_zero, m.number(0.0), m.divide(m.number(127.0), largest))
        out = f.at(target, f.multiply(block, self.form.block))
        sums = []
        for b, one in enumerate(values):
            factor = shuffled(f, inverse, [b * lanes // self.blocks] * lanes)
            codes = []
            for v, value in enumerate(one):
                whole = m.unary("roundeven", m.multiply(value, factor))
                codes.append(f.convert("fptosi", whole, self.integers))
                place = f.at(out, lanes * (b * self.vectors + v))
                self.arithmetic.store("s8", codes[-1], place)
            sums.append(tree(codes, lambda x, y: f.binary("add", x, y)))
        total = reduced(f, sums, lambda x, y: f.binary("add", x, y))
        taken = f.binary("mul", total, splat_integer(-self.form.zero, lanes))
        entry = f.at(target, f.multiply(block, 4))
        scale = m.multiply(largest, m.number(1.0 / 127.0))
        f.store(self._first_lanes(scale), entry, self.form.scales_at, align=4)
        f.store(self._first_lanes(taken), entry, self.form.zeros_at, align=4)

    def _first_lanes(self, row: Value) -> Value:
        """Return the first lane of each block's part."""
        lanes = self.arithmetic.lanes
        return shuffled(self.f, row, [b * lanes // self.blocks for b in range(self.blocks)])


def share_exponent(f: Function, arithmetic: Arithmetic, values: list[Value]) -> list[Value]:
    """Round eight vectors, lane by lane, to signed eight-bit numbers of one power of two.

    Such a number has seven bits of magnitude and fits a bfloat16 exactly.
    """
    m = arithmetic.math
    sizes = [m.unary("fabs", value) for value in values]
    while len(sizes) > 1:
        sizes = [m.maximum(a, b) for a, b in zip(sizes[::2], sizes[1::2], strict=True)]
    unit = _shared_unit(f, arithmetic, sizes[0])
    return [_rounded(arithmetic, value, unit) for value in values]


def _shared_along_lanes(f: Function, arithmetic: Arithmetic, value: Value) -> Value:
    """Round each eight neighbouring lanes to numbers of one power of two."""
    m, lanes = arithmetic.math, arithmetic.lanes
    size = m.unary("fabs", value)
    for distance in (4, 2, 1):
        order = [lane // _BFP_GROUP * _BFP_GROUP + (lane + distance) % _BFP_GROUP
                 for lane in range(lanes)]  # fmt: skip
        size = m.maximum(size, shuffled(f, size, order))
    return _rounded(arithmetic, value, _shared_unit(f, arithmetic, size))


def _shared_unit(f: Function, arithmetic: Arithmetic, size: Value) -> Value:
    """Return the power of two that is one, for the largest of a group."""
    m, lanes = arithmetic.math, arithmetic.lanes
    bits = f.convert("bitcast", size, m.integers)
    exponent = f.binary("and", bits, splat_integer(0x7F800000, lanes))
    # 2^(e-6): the largest magnitude, below 2^(e+1), becomes at most 2^7.
    step = f.binary("sub", exponent, splat_integer(6 << 23, lanes))
    is_normal = f.compare("ugt", exponent, splat_integer(7 << 23, lanes))
    step = f.select(is_normal, step, splat_integer(1 << 23, lanes))
    return f.convert("bitcast", step, m.type)


def _rounded(arithmetic: Arithmetic, value: Value, unit: Value) -> Value:
    m = arithmetic.math
    whole = m.unary("roundeven", m.divide(value, unit))
    whole = m.minimum(m.number(127.0), m.maximum(m.number(-128.0), whole))
    return m.multiply(whole, unit)
