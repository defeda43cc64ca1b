"""Products in bfloat16 or float32 whose weights are unpacked where they are used.

A panel of weights is unpacked, some hundred values of the depth at a time, into a buffer that
stays in the first-level cache, and all rows pass over it: no copy of the weights is kept, and
unpacking costs a few percent of the product of a hundred rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import (
    Function,
    Module,
    Value,
    float_constant,
    splat_constant,
    splat_integer,
)
from vermilion.codegen.emit.decoder.block_product import load_scale
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.prepared import Prepared, share_exponent
from vermilion.codegen.emit.decoder.weights import LANES, PANEL, VECTORS, PlainWeights, Weights
from vermilion.codegen.emit.register_tile import RegisterTile, Side, prefetch_line
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS

# Values of the depth that are unpacked at a time, about: 32 columns of them are 16 KiB in bfloat16,
# so that a tile's rows have room beside them in the first-level cache (48 KiB on Zen 5).
_RUN = 256
# Panels that are computed together: their rows of 512 and a run of what they read are 512 KiB.
_GROUP = 4
# Values of the depth that are unpacked together: what a shared exponent is for, too.
_EIGHT = 8
# Rows of a tile: 24 accumulators with two vectors; then four at a time.
_ROW_TILES = (12, 4)
# Cache lines of the next run's weights that are asked for at each tile: a run in ten tiles.
_AHEAD_LINES = 8


@dataclass(frozen=True)
class PanelProductSpec:
    """out[row] = rows · weights (+ bias): float32 rows of `out_row` numbers.

    Arguments: control, rows, weights, out, and the bias if there is one. Rows are computed four at
    a time at least: buffers have room for what is computed beyond the last.
    """

    numeric: Literal["bf16", "f32"]
    weights: Weights
    rows: Prepared
    out_row: int
    has_bias: bool
    is_single: bool  # one row at a time: the float32 product of decoding

    family = "panel_product"

    @property
    def units(self) -> int:
        """One unit a panel of columns."""
        return self.weights.panels

    @property
    def is_unpacked(self) -> bool:
        """Whether the weights are in memory as the product reads them."""
        return isinstance(self.weights, PlainWeights) and self.numeric == "f32"

    @property
    def run(self) -> int:
        """Values of the depth that are unpacked at a time: whole blocks."""
        if self.is_unpacked:
            return self.weights.depth
        step = LANES if isinstance(self.weights, PlainWeights) else self.weights.block
        runs = max(1, round(self.weights.depth / _RUN))
        return -(-self.weights.depth // (runs * step)) * step

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        args, begin, end = f.arguments
        pointers = [f.load("ptr", args, 8 * i, align=8) for i in range(4 + self.has_bias)]
        writer = _Writer(self, module, name, isa, f, pointers)
        writer.panels(begin, end)
        f.finish()


class _Writer:
    def __init__(
        self,
        spec: PanelProductSpec,
        module: Module,
        name: str,
        isa: Isa,
        f: Function,
        pointers: list[Value],
    ) -> None:
        self.spec = spec
        self.module = module
        self.name = name
        self.isa = isa
        self.f = f
        self.control, self.rows, self.weights, self.out, *self.bias = pointers
        self.count = Control(f, self.control).rows
        item = 4 if spec.numeric == "f32" else 2
        self.value_bytes = item
        self.scratch = None if spec.is_unpacked else f.scratch(spec.run * PANEL * item)

    def panels(self, begin: Value, end: Value) -> None:
        """Write a range of panels: a few of them together, their depth in runs.

        What the rows hold in a run stays in the second-level cache for all panels of a group.
        """
        s, f = self.spec, self.f
        run, depth = s.run, s.weights.depth
        with f.loop(begin, end, _GROUP) as first:
            last = f.minimum(f.add(first, _GROUP), end)

            def run_at(start: Value, length: int, *, is_first: bool) -> None:
                with f.loop(first, last) as panel:
                    self._run((first, panel, last), start, length, is_first=is_first)

            run_at(f.index(0), min(run, depth), is_first=True)
            whole = depth // run
            if whole > 1:
                with f.loop(run, whole * run, run) as start:
                    run_at(start, run, is_first=False)
            if depth > run and depth % run:
                run_at(f.index(whole * run), depth % run, is_first=False)

    def _run(
        self, panels: tuple[Value, Value, Value], start: Value, depth: int, *, is_first: bool
    ) -> None:
        """Write a run of one panel, of those from a first to a last."""
        f, s = self.f, self.spec
        first, panel, last = panels
        out = f.at(self.out, f.multiply(panel, PANEL * 4))
        bias = [f.at(self.bias[0], f.multiply(panel, PANEL * 4))] if self.bias else []
        right = here = self._weights_at(panel, start)
        if self.scratch is not None:
            right = self.scratch
            unpack = _unpack(s, self.module, self.name, depth)
            f.call_void(unpack, [here, right])
        is_inside = f.compare("slt", f.add(panel, 1), last)
        after = f.at(self._weights_at(first, start), self._bytes(depth))
        ahead = f.select(is_inside, f.at(here, s.weights.panel_bytes), after)
        source = f.at(self.rows, f.multiply(start, self.value_bytes))
        sizes = (1,) if s.is_single else _ROW_TILES
        begin: Value = f.index(0)
        for number, size in enumerate(sizes):
            is_last = number == len(sizes) - 1
            stop = self.count
            if not is_last:
                stop = f.subtract(self.count, f.remainder(self.count, size))
            with f.loop(begin, stop, size) as row:
                if not s.is_single and size == _ROW_TILES[0]:
                    self._fetch(ahead, f.divide(row, size), self._bytes(depth))
                f.call_void(
                    self._tile(size, depth, is_first=is_first),
                    [
                        f.at(source, f.multiply(row, s.rows.row_bytes)), right,
                        f.at(out, f.multiply(row, s.out_row * 4)), *(bias if is_first else []),
                    ],
                )  # fmt: skip
            begin = stop

    def _fetch(self, ahead: Value, tile: Value, size: int) -> None:
        """Ask for a piece of the weights that are unpacked next, while rows are multiplied."""
        f = self.f
        first = f.multiply(tile, _AHEAD_LINES * 64)
        with f.when(f.compare("slt", first, f.index(size))):
            for line in range(_AHEAD_LINES):
                prefetch_line(f, f.at(f.at(ahead, first), line * 64))

    def _bytes(self, depth: int) -> int:
        """Give the bytes of a panel's weights for some of the depth."""
        w = self.spec.weights
        if isinstance(w, PlainWeights):
            return depth * PANEL * 4
        return -(-depth // w.block) * w.block_bytes

    def _weights_at(self, panel: Value, start: Value) -> Value:
        """Give a panel's weights from some depth on."""
        w, f = self.spec.weights, self.f
        weights = f.at(self.weights, f.multiply(panel, w.panel_bytes))
        if isinstance(w, PlainWeights):
            return f.at(weights, f.multiply(start, PANEL * 4))
        return f.at(weights, f.multiply(f.divide(start, w.block), w.block_bytes))

    def _tile(self, rows: int, depth: int, *, is_first: bool) -> str:
        """Write the function (rows, panel, out[, bias]) that sets or adds to a patch of `out`."""
        name = f"{self.name}_tile{rows}_{depth}_{int(is_first)}"
        if self.module.has(name):
            return name
        s = self.spec
        has_bias = s.has_bias and is_first
        labels = ["rows", "panel", "out", *(["bias"] if has_bias else [])]
        f = Function(self.module, name, [(label, "ptr") for label in labels])
        arithmetic = Arithmetic(f, LANES)
        tile = RegisterTile(f, self.isa, s.numeric, rows, VECTORS)
        group = NUMERICS[s.numeric].group
        step = PANEL * self.value_bytes * group
        tile.multiply(Side(f.arguments[0], s.rows.row_bytes), Side(f.arguments[1], step), depth)
        for y, slots in enumerate(tile.accumulators):
            for v, slot in enumerate(slots):
                place = f.at(f.arguments[2], (y * s.out_row + v * LANES) * 4)
                total = slot.get()
                if has_bias:
                    shift = arithmetic.load("f32", f.at(f.arguments[3], v * LANES * 4))
                    total = arithmetic.math.add(total, shift)
                if not is_first:
                    total = arithmetic.math.add(total, arithmetic.load("f32", place))
                arithmetic.store("f32", total, place)
        f.finish()
        return name


def _unpack(spec: PanelProductSpec, module: Module, name: str, depth: int) -> str:
    """Write the function (weights, panel) that unpacks `depth` values of a panel's columns."""
    function = f"{name}_unpack{depth}"
    if module.has(function):
        return function
    f = Function(module, function, [("weights", "ptr"), ("panel", "ptr")])
    writer = _Unpack(spec, f)
    if isinstance(spec.weights, PlainWeights):
        writer.plain(depth)
    else:
        writer.blocks(-(-depth // spec.weights.block))
    f.finish()
    return function


class _Unpack:
    def __init__(self, spec: PanelProductSpec, f: Function) -> None:
        self.spec = spec
        self.item_bytes = 4 if spec.numeric == "f32" else 2
        self.f = f
        self.arithmetic = Arithmetic(f, LANES)

    def plain(self, depth: int) -> None:
        """Write the rounding of float32 numbers."""
        f = self.f
        weights, panel = f.arguments
        with f.loop(0, depth, _EIGHT) as k:
            row = f.at(weights, f.multiply(k, PANEL * 4))
            target = f.at(panel, f.multiply(k, PANEL * self.item_bytes))
            for v in range(VECTORS):
                values = [
                    self.arithmetic.load("f32", f.at(row, (number * PANEL + v * LANES) * 4))
                    for number in range(_EIGHT)
                ]
                self._store(values, target, v)

    def blocks(self, count: int) -> None:
        """Write the unpacking of `count` blocks."""
        f, w = self.f, self.spec.weights
        assert not isinstance(w, PlainWeights), "plain weights have no blocks"
        m = self.arithmetic.math
        weights, panel = f.arguments
        vectors = w.bits // 4  # in memory, for eight codes of sixteen columns
        with f.loop(0, count) as block:
            codes = f.at(weights, f.multiply(block, w.block_bytes))
            target = f.at(panel, f.multiply(block, w.block * PANEL * self.item_bytes))
            for v in range(VECTORS):
                scale = load_scale(self.arithmetic, w, codes, v)
                shift = self._shift(codes, scale, v)
                for eight in range(w.block // _EIGHT):
                    place = v * w.code_bytes + eight * vectors * LANES * 4
                    packed = [
                        f.load(m.integers, codes, place + number * LANES * 4, align=1)
                        for number in range(vectors)
                    ]
                    values = self._eight(packed, scale, shift)
                    self._store(values, f.at(target, eight * _EIGHT * PANEL * self.item_bytes), v)

    def _shift(self, block: Value, scale: Value, v: int) -> Value | None:
        """Give what is added to code · scale: minus the zero point, in the scale."""
        f, w, m = self.f, self.spec.weights, self.arithmetic.math
        assert not isinstance(w, PlainWeights), "plain weights have no zero points"
        if w.has_zeros:
            own = self.arithmetic.load("u8", f.at(block, w.zeros_at + v * LANES))
            zero = m.subtract(m.number(-0.0), f.convert("sitofp", own, m.type))
            return m.multiply(scale, zero)
        # Four bits are looked up with the zero point taken off.
        return None if w.bits == 4 else m.multiply(scale, splat_constant(-float(w.zero), LANES))

    def _eight(self, packed: list[Value], scale: Value, shift: Value | None) -> list[Value]:
        """Give eight numbers of the depth: lanes are columns, the depth runs inside a lane."""
        w, m = self.spec.weights, self.arithmetic.math
        assert not isinstance(w, PlainWeights), "plain weights have no codes"
        values = []
        for vector in packed:
            for part in range(8 // w.bits):
                for byte in range(4):
                    number = self._number(vector, 8 * byte + 4 * part)
                    scaled = m.fma(number, scale, shift) if shift else m.multiply(number, scale)
                    values.append(scaled)
        return values

    def _store(self, values: list[Value], target: Value, v: int) -> None:
        """Write eight numbers of the depth of one vector of columns into the panel."""
        if self.spec.rows.kind == "bfp16":
            values = share_exponent(self.f, self.arithmetic, values)
        if self.spec.numeric == "f32":
            for number, value in enumerate(values):
                place = (number * PANEL + v * LANES) * 4
                self.arithmetic.store("f32", value, self.f.at(target, place))
            return
        for number in range(0, len(values), 2):
            place = number * PANEL * 2 + v * LANES * 4
            self._store_pair(values[number], values[number + 1], self.f.at(target, place))

    def _number(self, packed: Value, shift: int) -> Value:
        """Give the code that begins at bit `shift` of every lane, as a number."""
        f, w, m = self.f, self.spec.weights, self.arithmetic.math
        assert not isinstance(w, PlainWeights), "plain weights have no codes"
        moved = packed
        if shift:
            moved = f.binary("lshr", packed, splat_integer(shift, LANES))
        if w.bits == 4:
            # Looked up among sixteen numbers, by the low four bits of a lane.
            zero = 0 if w.has_zeros else w.zero
            numbers = ", ".join(str(float_constant(code - zero)) for code in range(LANES))
            table = Value(m.type, f"<{numbers}>")
            return f.intrinsic("llvm.x86.avx512.permvar.sf.512", m.type, [table, moved])
        code = moved
        if shift + w.bits < 32:
            code = f.binary("and", moved, splat_integer((1 << w.bits) - 1, LANES))
        return f.convert("sitofp", code, m.type)

    def _store_pair(self, first: Value, second: Value, place: Value) -> None:
        """Store two values of the depth for 16 columns: their bfloat16 take turns."""
        f = self.f
        name = "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        narrow = f.intrinsic(name, f"<{2 * LANES} x bfloat>", [second, first])
        turns = ", ".join(f"i32 {lane // 2 + LANES * (lane % 2)}" for lane in range(2 * LANES))
        paired = f.emit(
            narrow.type,
            f"shufflevector {narrow}, {narrow.type} poison, <{2 * LANES} x i32> <{turns}>",
        )
        f.store(paired, place, align=64)
