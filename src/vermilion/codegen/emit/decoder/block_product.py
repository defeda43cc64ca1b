"""Products of quantized rows and weights in blocks: whole numbers inside a block, scaled after it.

With one row this is the matrix-vector product of decoding, which reads each weight once; with
many, the panel stays in the first-level cache while tiles of rows pass over it. Memory is the same
for all processors; how many columns are a vector, and what multiplies bytes, is the processor's.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.byte_dot import ByteDot, Sums, byte_dot
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.weights import LANES, PANEL, VECTORS, BlockWeights
from vermilion.codegen.emit.register_tile import prefetch_line
from vermilion.codegen.emit.values import Value, splat_integer
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa

# How far ahead of a single row's product its weights are asked for: the processor's own prefetching
# ends at pages of 4 KiB. Into the first level: with the second, a line is asked for twice. As lines
# that are read once: on its way out what leaves the first level would push everything else out of
# the others. A few at a time between the multiplications: all of a block at once have to wait for
# each other. The products of one billion weights on one Zen 5 core, of what the memory gives: 96 %;
# 94 to 95 % with 4, 5, 8 or 9 KiB, 93 % all at once, 90 % all at once and 4 KiB ahead, 88 % as
# lines that may be read again.
_AHEAD_BYTES = 6336


@dataclass(frozen=True)
class BlockProductSpec:
    """out[row] = rows · weights (+ bias): float32 rows of `out_row` numbers.

    Arguments: control, rows, weights, out, and the bias if there is one.
    """

    weights: BlockWeights
    rows: ActivationLayout
    out_row: int
    row_tile: int
    has_bias: bool

    family = "block_product"

    @property
    def units(self) -> int:
        """One unit a panel of columns."""
        return self.weights.panels

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, (begin, end) = begin_kernel(module, name, 4 + self.has_bias)
        control, rows, weights, out, *bias = pointers
        tile = _tile(self, module, name, self.row_tile, isa)
        one = _tile(self, module, name, 1, isa)
        count = Control(f, control).rows
        whole = f.subtract(count, f.remainder(count, self.row_tile))
        with f.loop(begin, end) as panel:
            codes = f.at(weights, f.multiply(panel, self.weights.panel_bytes))
            target = f.at(out, f.multiply(panel, PANEL * 4))
            shift = [f.at(bias[0], f.multiply(panel, PANEL * 4))] if bias else []
            for start, stop, step, function in (
                (f.index(0), whole, self.row_tile, tile),
                (whole, count, 1, one),
            ):
                with f.loop(start, stop, step) as row:
                    source = f.at(rows, f.multiply(row, self.rows.row_bytes))
                    place = f.at(target, f.multiply(row, self.out_row * 4))
                    f.call_void(function, [source, codes, place, *shift])
        f.finish()


def _tile(spec: BlockProductSpec, module: Module, name: str, rows: int, isa: Isa) -> str:
    """Write the function (rows, codes, out[, bias]) for a patch of rows and one panel."""
    function = f"{name}_tile{rows}"
    if module.has(function):
        return function
    labels = ["rows", "codes", "out", *(["bias"] if spec.has_bias else [])]
    f = Function(module, function, [(label, "ptr") for label in labels])
    dot = byte_dot(f, isa, spec.weights)
    vectors = PANEL // isa.lanes
    # In registers beside the sums of a block: those of all blocks, in float32.
    together = isa.vectors_beside(rows * (dot.sums + 1), vectors)
    for first in range(0, vectors, together):
        _Tile(spec, f, dot, rows, range(first, first + together)).write()
    f.finish()
    return function


class _Tile:
    """Some rows and vectors of columns of a panel."""

    def __init__(
        self, spec: BlockProductSpec, f: Function, dot: ByteDot, rows: int, vectors: range
    ) -> None:
        self.spec = spec
        self.f = f
        self.dot = dot
        self.rows = rows
        self.vectors = vectors
        self.lanes = dot.isa.lanes
        self.arithmetic = Arithmetic(f, self.lanes)
        zero = Value(self.arithmetic.type("float"), "zeroinitializer")
        self.sums = [[f.slot(zero) for _ in vectors] for _ in range(rows)]

    def write(self) -> None:
        """Write the loop over blocks and the end."""
        f, w, form = self.f, self.spec.weights, self.spec.rows
        source, codes, out, *bias = f.arguments
        with f.loop(0, w.blocks) as block:
            shared, here = block_at(f, w, codes, block)
            self._block(
                shared,
                here,
                f.at(source, f.multiply(block, w.block)),
                f.at(source, f.add(f.multiply(block, 4), form.scales_at)),
                f.at(source, f.add(f.multiply(block, 4), form.zeros_at)),
            )
        for y, slots in enumerate(self.sums):
            for v, slot in zip(self.vectors, slots, strict=True):
                total = slot.get()
                if bias:
                    shift = self.arithmetic.load("f32", f.at(bias[0], v * self.lanes * 4))
                    total = self.arithmetic.math.add(total, shift)
                place = f.at(out, (y * self.spec.out_row + v * self.lanes) * 4)
                self.arithmetic.store("f32", total, place)

    def _block(
        self, shared: Value, codes: Value, values: Value, scales: Value, zeros: Value
    ) -> None:
        f, w = self.f, self.spec.weights
        m = self.arithmetic.math
        step = self.spec.rows.row_bytes
        sums = self.dot.begin(
            lambda y: self._started(codes, zeros, y * step), self.rows, len(self.vectors)
        )
        is_first = self.vectors.start == 0
        lines = range(0, w.block_bytes, 64) if self.spec.row_tile == 1 and is_first else ()
        quads = range(0, w.block // 4, 8 // w.bits)
        most = self.dot.most_quads
        if most is not None and self.rows > 1:
            # Loops: of a whole block LLVM would keep the codes, and take row after row.
            for start in range(0, w.block // 4, most):
                with f.loop(start, min(start + most, w.block // 4), quads.step) as one:
                    here = f.at(codes, f.multiply(one, LANES * w.bits // 2))
                    self._quads(sums, here, f.at(values, f.multiply(one, 4)), 0)
                sums.widen()
            quads = quads[:0]
        for number, quad in enumerate(quads):
            first, last = (len(lines) * edge // len(quads) for edge in (number, number + 1))
            for line in lines[first:last]:
                prefetch_line(f, f.at(codes, _AHEAD_BYTES + line), level="once")
            self._quads(sums, codes, values, quad)
            after = quad + quads.step
            if most is not None and (after % most == 0 or after == w.block // 4):
                sums.widen()
        for n, v in enumerate(self.vectors):
            scale = load_scale(self.arithmetic, w, shared, codes, v)
            added = load_added(self.arithmetic, w, shared, codes, v) if w.has_mins else None
            for y in range(self.rows):
                value = m.multiply(f.convert("sitofp", sums.total(y, n), m.type), scale)
                own = self.arithmetic.load_splat("f32", f.at(scales, y * step))
                if added is not None:
                    # What is stored of a row is minus the sum of its codes.
                    total = self.arithmetic.splat(f.load("i32", zeros, y * step, align=4))
                    total = f.convert("sitofp", total, m.type)
                    value = m.subtract(value, m.multiply(added, total))
                slot: Slot = self.sums[y][n]
                slot.set(m.fma(value, own, slot.get()))

    def _quads(self, sums: Sums, codes: Value, values: Value, quad: int) -> None:
        """Add the products of the quads that one vector in memory holds."""
        f, w, step = self.f, self.spec.weights, self.spec.rows.row_bytes
        sides = [self.dot.codes(codes, v, quad) for v in self.vectors]
        for part in range(8 // w.bits):
            for y in range(self.rows):
                word = f.load("i32", values, y * step + (quad + part) * 4, align=1)
                four = self.arithmetic.splat(word)
                for n in range(len(self.vectors)):
                    sums.add(y, n, sides[n][part], four)

    def _started(self, codes: Value, zeros: Value, row: int) -> list[Value]:
        """Return the sums that a row's block begins with: what takes the zero points off."""
        f, w = self.f, self.spec.weights
        if w.has_mins:
            return [splat_integer(0, self.lanes)] * len(self.vectors)
        taken = self.arithmetic.splat(f.load("i32", zeros, row, align=4))
        if not w.has_zeros:
            return [taken] * len(self.vectors)
        own = [self.arithmetic.load("u8", f.at(codes, w.zeros_at + v * self.lanes))
               for v in self.vectors]  # fmt: skip
        return [f.binary("mul", taken, one) for one in own]


def block_at(f: Function, w: BlockWeights, start: Value, block: Value) -> tuple[Value, Value]:
    """Return where what a block shares is, and the block, of weights that begin with a group."""
    if not w.group:
        here = f.at(start, f.multiply(block, w.block_bytes))
        return here, here
    shared = f.at(start, f.multiply(f.divide(block, w.group), w.step_bytes))
    inside = f.multiply(f.remainder(block, w.group), w.block_bytes)
    return shared, f.at(shared, f.add(inside, w.shared_bytes))


def load_scale(
    arithmetic: Arithmetic, w: BlockWeights, shared: Value, block: Value, v: int
) -> Value:
    """Load the scales of one vector of columns of the block at `block`."""
    f, m, lanes = arithmetic.f, arithmetic.math, arithmetic.lanes
    place = f.at(block, VECTORS * w.code_bytes + v * lanes * w.scale_item_bytes)
    match w.scale:
        case "f16" | "f32":
            return arithmetic.load(w.scale, place)
        case "s8":
            own = f.convert("sitofp", arithmetic.load("s8", place), m.type)
            return m.multiply(own, arithmetic.load("f32", f.at(shared, v * lanes * 4)))
        case "e8m0":
            own = arithmetic.load("u8", place)
            above = f.binary("sub", own, splat_integer(1, lanes))
            normal = f.binary("shl", above, splat_integer(23, lanes))
            small = f.binary("shl", splat_integer(1 << 21, lanes), own)
            is_small = f.compare("ult", own, splat_integer(2, lanes))
            return f.convert("bitcast", f.select(is_small, small, normal), m.type)


def load_added(
    arithmetic: Arithmetic, w: BlockWeights, shared: Value, block: Value, v: int
) -> Value:
    """Load what is added to the weights of one vector of columns of a block."""
    f, m, lanes = arithmetic.f, arithmetic.math, arithmetic.lanes
    place = f.at(block, w.zeros_at + v * lanes * w.scale_item_bytes)
    if w.scale == "s8":
        own = f.convert("sitofp", arithmetic.load("s8", place), m.type)
        return m.multiply(own, arithmetic.load("f32", f.at(shared, (PANEL + v * lanes) * 4)))
    assert w.scale in ("f16", "f32"), "what is added is stored as scales are"
    return arithmetic.load(w.scale, place)
