"""Products of quantized rows and weights in blocks: whole numbers inside a block, scaled after it.

With one row this is the matrix-vector product of decoding, which reads each weight once; with
many, the panel stays in the first-level cache while tiles of rows pass over it.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
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
        assert isa.has_vnni, "block products need VNNI"
        f, pointers, (begin, end) = begin_kernel(module, name, 4 + self.has_bias)
        control, rows, weights, out, *bias = pointers
        tile = _tile(self, module, name, self.row_tile)
        one = _tile(self, module, name, 1)
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


def _tile(spec: BlockProductSpec, module: Module, name: str, rows: int) -> str:
    """Write the function (rows, codes, out[, bias]) for a patch of rows and one panel."""
    function = f"{name}_tile{rows}"
    if module.has(function):
        return function
    labels = ["rows", "codes", "out", *(["bias"] if spec.has_bias else [])]
    f = Function(module, function, [(label, "ptr") for label in labels])
    _Tile(spec, f, rows).write()
    f.finish()
    return function


class _Tile:
    def __init__(self, spec: BlockProductSpec, f: Function, rows: int) -> None:
        self.spec = spec
        self.f = f
        self.rows = rows
        self.arithmetic = Arithmetic(f, LANES)
        zero = Value(self.arithmetic.type("float"), "zeroinitializer")
        self.sums = [[f.slot(zero) for _ in range(VECTORS)] for _ in range(rows)]

    def write(self) -> None:
        """Write the loop over blocks and the end."""
        f, w, form = self.f, self.spec.weights, self.spec.rows
        source, codes, out, *bias = f.arguments
        with f.loop(0, w.blocks) as block:
            here = f.at(codes, f.multiply(block, w.block_bytes))
            self._block(
                here,
                f.at(source, f.multiply(block, w.block)),
                f.at(source, f.add(f.multiply(block, 4), form.scales_at)),
                f.at(source, f.add(f.multiply(block, 4), form.zeros_at)),
            )
        for y, slots in enumerate(self.sums):
            for v, slot in enumerate(slots):
                total = slot.get()
                if bias:
                    shift = self.arithmetic.load("f32", f.at(bias[0], v * LANES * 4))
                    total = self.arithmetic.math.add(total, shift)
                place = f.at(out, (y * self.spec.out_row + v * LANES) * 4)
                self.arithmetic.store("f32", total, place)

    def _block(self, codes: Value, values: Value, scales: Value, zeros: Value) -> None:
        f, w = self.f, self.spec.weights
        m = self.arithmetic.math
        step = self.spec.rows.row_bytes
        whole = self._started(codes, zeros, step)
        lines = range(0, w.block_bytes, 64) if self.spec.row_tile == 1 else ()
        quads = range(0, w.block // 4, 8 // w.bits)
        for number, quad in enumerate(quads):
            first, last = (len(lines) * edge // len(quads) for edge in (number, number + 1))
            for line in lines[first:last]:
                prefetch_line(f, f.at(codes, _AHEAD_BYTES + line), level="once")
            sides = [self._codes(codes, v, quad) for v in range(VECTORS)]
            for part in range(8 // w.bits):
                for y in range(self.rows):
                    word = f.load("i32", values, y * step + (quad + part) * 4, align=1)
                    four = self.arithmetic.splat(word)
                    for v in range(VECTORS):
                        sum_ = whole[y][v]
                        whole[y][v] = f.intrinsic(
                            "llvm.x86.avx512.vpdpbusd.512", sum_.type, [sum_, sides[v][part], four]
                        )
        for v in range(VECTORS):
            scale = load_scale(self.arithmetic, w, codes, v)
            for y in range(self.rows):
                value = f.convert("sitofp", whole[y][v], m.type)
                own = self.arithmetic.load_splat("f32", f.at(scales, y * step))
                slot: Slot = self.sums[y][v]
                slot.set(m.fma(m.multiply(value, scale), own, slot.get()))

    def _started(self, codes: Value, zeros: Value, step: int) -> list[list[Value]]:
        """Return the sums that a block begins with: what takes the zero points off."""
        f, w = self.f, self.spec.weights
        starts = []
        for y in range(self.rows):
            taken = self.arithmetic.splat(f.load("i32", zeros, y * step, align=4))
            if not w.has_zeros:
                starts.append([taken] * VECTORS)
                continue
            own = [self.arithmetic.load("u8", f.at(codes, w.zeros_at + v * LANES))
                   for v in range(VECTORS)]  # fmt: skip
            starts.append([f.binary("mul", taken, one) for one in own])
        return starts

    def _codes(self, codes: Value, v: int, quad: int) -> list[Value]:
        """Return unsigned bytes of the quads that one vector in memory holds."""
        f, w = self.f, self.spec.weights
        place = v * w.code_bytes + quad * LANES * w.bits // 2
        packed = f.load(f"<{LANES} x i32>", codes, place, align=1)
        if w.bits == 8:
            return [packed]
        mask = splat_integer(0x0F0F0F0F, LANES)
        high = f.binary("lshr", packed, splat_integer(4, LANES))
        return [f.binary("and", packed, mask), f.binary("and", high, mask)]


def load_scale(arithmetic: Arithmetic, w: BlockWeights, block: Value, v: int) -> Value:
    """Load the scales of one vector of columns of the block at `block`."""
    place = VECTORS * w.code_bytes + v * w.scale_bytes
    return arithmetic.load(w.scale, arithmetic.f.at(block, place))
