"""Products in bfloat16 or float32 whose weights are unpacked where they are used.

A panel of weights is unpacked, some hundred values of the depth at a time, into a buffer that
stays in the first-level cache, and all rows pass over it: no copy of the weights is kept. While
rows are multiplied with one buffer, the next one is filled: a piece in each of the first tiles,
between their multiply-adds, by those parts of a core that these leave idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot, Value
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.prepared import Prepared
from vermilion.codegen.emit.decoder.unpack import EIGHT, Unpack
from vermilion.codegen.emit.decoder.weights import (
    LANES,
    PANEL,
    VECTORS,
    BlockWeights,
    PlainWeights,
    Weights,
)
from vermilion.codegen.emit.register_tile import RegisterTile, Side, prefetch_line
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS

# Values of the depth that are unpacked at a time, about: 32 columns of them are 16 KiB in bfloat16,
# so that a tile's rows have room beside them in the first-level cache (48 KiB on Zen 5).
_RUN = 256
# Panels that are computed together: their rows of 512 and a run of what they read are 512 KiB.
_GROUP = 4
# Rows of a tile: 24 accumulators with two vectors; then what is left of rows in fours.
_ROW_TILES = (12, 8, 4)


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

    @property
    def piece(self) -> int:
        """Values of the depth that are unpacked in one tile: a part of every run."""
        is_whole = isinstance(self.weights, BlockWeights) and self.weights.block % 32 == 0
        return 32 if is_whole else 16

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        args, begin, end = f.arguments
        pointers = [f.load("ptr", args, 8 * i, align=8) for i in range(4 + self.has_bias)]
        writer = _Writer(self, module, name, isa, f, pointers)
        writer.panels(begin, end)
        f.finish()


@dataclass(frozen=True)
class _Place:
    """A run of one panel, of those of a group."""

    first: Value
    panel: Value
    last: Value
    start: Value


@dataclass(frozen=True)
class _Filling:
    """Weights that are unpacked while rows are multiplied, where to, and those after them."""

    weights: Value
    pieces: Value
    target: Value
    ahead: Value


Tiles = Callable[[Value, Value, int, _Filling | None], None]


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
        # What rows are multiplied with, and what is filled meanwhile: they take turns.
        self.buffers: list[Slot] = []
        if not spec.is_unpacked:
            size = spec.run * PANEL * item
            self.buffers = [f.slot(f.scratch(size)) for _ in range(1 if spec.is_single else 2)]

    def panels(self, begin: Value, end: Value) -> None:
        """Write a range of panels: a few of them together, their depth in runs.

        What the rows hold in a run stays in the second-level cache for all panels of a group.
        """
        s, f = self.spec, self.f
        run, depth = s.run, s.weights.depth
        if len(self.buffers) == 2:
            weights = self._weights_at(begin, f.index(0))
            self._unpack(weights, self.buffers[0].get(), f.index(0), self._pieces(min(run, depth)))
        with f.loop(begin, end, _GROUP) as first:
            last = f.minimum(f.add(first, _GROUP), end)

            def run_at(start: Value, length: int, *, is_first: bool) -> None:
                with f.loop(first, last) as panel:
                    self._run(_Place(first, panel, last, start), end, length, is_first=is_first)

            run_at(f.index(0), min(run, depth), is_first=True)
            whole = depth // run
            if whole > 1:
                with f.loop(run, whole * run, run) as start:
                    run_at(start, run, is_first=False)
            if depth > run and depth % run:
                run_at(f.index(whole * run), depth % run, is_first=False)

    def _run(self, place: _Place, end: Value, depth: int, *, is_first: bool) -> None:
        """Write a run of one panel."""
        f, s = self.f, self.spec
        out = f.at(self.out, f.multiply(place.panel, PANEL * 4))
        bias = [f.at(self.bias[0], f.multiply(place.panel, PANEL * 4))] if self.bias else []
        right = here = self._weights_at(place.panel, place.start)
        source = f.at(self.rows, f.multiply(place.start, self.value_bytes))

        def tiles(begin: Value, stop: Value, size: int, filling: _Filling | None = None) -> None:
            name = self._tile(size, depth, is_first=is_first, is_filling=filling is not None)
            with f.loop(begin, stop, size) as row:
                arguments = [
                    f.at(source, f.multiply(row, s.rows.row_bytes)), right,
                    f.at(out, f.multiply(row, s.out_row * 4)), *(bias if is_first else []),
                ]  # fmt: skip
                if filling is not None:
                    piece = f.divide(row, size)
                    arguments += [filling.weights, piece, filling.target, filling.ahead]
                f.call_void(name, arguments)

        if len(self.buffers) == 1:
            right = self.buffers[0].get()
            self._unpack(here, right, f.index(0), self._pieces(depth))
        if s.is_single:
            tiles(f.index(0), self.count, 1)
            return
        filling = None
        if self.buffers:
            filling = self._filling(place, end)
            right = self.buffers[0].get()
        self._all_rows(tiles, filling)

    def _all_rows(self, tiles: Tiles, filling: _Filling | None) -> None:
        """Write the tiles of all rows; the first of them fill the other buffer."""
        f = self.f
        largest = _ROW_TILES[0]
        fours = f.multiply(f.divide(f.add(self.count, 3), 4), 4)
        begin: Value = f.index(0)
        if filling is not None:
            whole = f.divide(fours, largest)
            shared = f.minimum(filling.pieces, whole)
            begin = f.multiply(shared, largest)
            tiles(f.index(0), begin, largest, filling)
        for size in _ROW_TILES:
            stop = f.subtract(fours, f.remainder(f.subtract(fours, begin), size))
            tiles(begin, stop, size, None)
            begin = stop
        if filling is not None:
            self._unpack(filling.weights, filling.target, shared, filling.pieces)
            other = self.buffers[0].get()
            self.buffers[0].set(filling.target)
            self.buffers[1].set(other)

    def _filling(self, place: _Place, end: Value) -> _Filling:
        after = self._after(place, end)
        beyond = self._after(after, end)
        return _Filling(
            self._weights_at(after.panel, after.start),
            self._pieces_at(after, end),
            self.buffers[1].get(),
            self._weights_at(beyond.panel, beyond.start),
        )

    def _after(self, place: _Place, end: Value) -> _Place:
        """Give what comes after a run of a panel: the next panel, the next run, the next group."""
        f, s = self.f, self.spec
        panel, start = f.add(place.panel, 1), f.add(place.start, s.run)
        is_inside = f.compare("slt", panel, place.last)
        is_deeper = f.compare("slt", start, f.index(s.weights.depth))
        stays = f.binary("or", is_inside, is_deeper)
        zero = f.index(0)
        return _Place(
            f.select(stays, place.first, place.last),
            f.select(is_inside, panel, f.select(is_deeper, place.first, place.last)),
            f.select(stays, place.last, f.minimum(f.add(place.last, _GROUP), end)),
            f.select(is_inside, place.start, f.select(is_deeper, start, zero)),
        )

    def _pieces(self, depth: int) -> Value:
        """Give the pieces of a run."""
        return self.f.index(self._padded(depth) // self.spec.piece)

    def _pieces_at(self, place: _Place, end: Value) -> Value:
        """Give the pieces of a run, 0 beyond the last panel."""
        f, s = self.f, self.spec
        is_there = f.compare("slt", place.panel, end)
        left = f.subtract(self._padded(s.weights.depth), place.start)
        return f.select(is_there, f.divide(f.minimum(left, s.run), s.piece), f.index(0))

    def _padded(self, depth: int) -> int:
        w = self.spec.weights
        return depth if isinstance(w, PlainWeights) else -(-depth // w.block) * w.block

    def _unpack(self, weights: Value, target: Value, begin: Value, stop: Value) -> None:
        """Write the unpacking of some pieces of a run."""
        with self.f.loop(begin, stop) as piece:
            self.f.call_void(self._unpack_piece(), [weights, piece, target])

    def _unpack_piece(self) -> str:
        """Write the function (weights, piece, panel) that unpacks a piece of a run."""
        name = f"{self.name}_unpack"
        if self.module.has(name):
            return name
        s = self.spec
        f = Function(self.module, name, [("weights", "ptr"), ("piece", "i64"), ("panel", "ptr")])
        weights, piece, panel = f.arguments
        unpack = Unpack(f, s.weights, s.rows.kind)
        eights = s.piece // EIGHT
        with f.loop(0, eights) as number:
            eight = f.add(f.multiply(piece, eights), number)
            for v in range(VECTORS):
                unpack.write(weights, eight, v, panel)
        f.finish()
        return name

    def _weights_at(self, panel: Value, start: Value) -> Value:
        """Give a panel's weights from some depth on."""
        w, f = self.spec.weights, self.f
        weights = f.at(self.weights, f.multiply(panel, w.panel_bytes))
        if isinstance(w, PlainWeights):
            return f.at(weights, f.multiply(start, PANEL * 4))
        return f.at(weights, f.multiply(f.divide(start, w.block), w.block_bytes))

    def _tile(self, rows: int, depth: int, *, is_first: bool, is_filling: bool) -> str:
        """Write the function that sets or adds to a patch of `out`.

        Its arguments: rows, panel, out, the bias if there is one and it is to be added; then, of
        what is unpacked on the way, the weights, the number of the piece, where to, and what is
        asked for meanwhile.
        """
        name = f"{self.name}_tile{rows}_{depth}_{int(is_first)}{'_filling' * is_filling}"
        if self.module.has(name):
            return name
        s = self.spec
        has_bias = s.has_bias and is_first
        labels = [("rows", "ptr"), ("panel", "ptr"), ("out", "ptr"), *[("bias", "ptr")] * has_bias]
        if is_filling:
            labels += [("weights", "ptr"), ("piece", "i64"), ("next", "ptr"), ("ahead", "ptr")]
        f = Function(self.module, name, labels)
        left, right, out, *more = f.arguments
        tile = RegisterTile(f, self.isa, s.numeric, rows, VECTORS)
        step = PANEL * self.value_bytes * NUMERICS[s.numeric].group
        if is_filling:
            self._multiply_and_fill(tile, Side(left, s.rows.row_bytes), Side(right, step), depth)
        else:
            tile.multiply(Side(left, s.rows.row_bytes), Side(right, step), depth)
        arithmetic = Arithmetic(f, LANES)
        for y, slots in enumerate(tile.accumulators):
            for v, slot in enumerate(slots):
                place = f.at(out, (y * s.out_row + v * LANES) * 4)
                total = slot.get()
                if has_bias:
                    shift = arithmetic.load("f32", f.at(more[0], v * LANES * 4))
                    total = arithmetic.math.add(total, shift)
                if not is_first:
                    total = arithmetic.math.add(total, arithmetic.load("f32", place))
                arithmetic.store("f32", total, place)
        f.finish()
        return name

    def _multiply_and_fill(self, tile: RegisterTile, left: Side, right: Side, depth: int) -> None:
        """Write the product over `depth`, and the unpacking of a piece of the next buffer."""
        f, s = tile.f, self.spec
        weights, piece, target, ahead = f.arguments[-4:]
        unpack = Unpack(f, s.weights, s.rows.kind)
        eights = s.piece // EIGHT
        part = depth // (eights * VECTORS)  # of the product, between two vectors that are unpacked
        group = NUMERICS[s.numeric].group
        assert depth % (eights * VECTORS * group) == 0, "rows are whole vectors"
        piece_bytes = self._bytes(s.piece)
        lines = -(-piece_bytes // (64 * eights))
        with f.loop(0, eights) as number:
            start = f.multiply(number, part * VECTORS)
            eight = f.add(f.multiply(piece, eights), number)
            line = f.add(f.multiply(piece, piece_bytes), f.multiply(number, lines * 64))
            for ahead_line in range(lines):
                prefetch_line(f, f.at(f.at(ahead, line), ahead_line * 64))
            for v in range(VECTORS):
                at = f.add(start, v * part)
                tile.multiply(
                    Side(f.at(left.pointer, f.multiply(at, self.value_bytes)), left.step_bytes),
                    Side(f.at(right.pointer, f.multiply(f.divide(at, group), right.step_bytes)),
                         right.step_bytes),
                    part,
                )  # fmt: skip
                unpack.write(weights, eight, v, target)

    def _bytes(self, depth: int) -> int:
        """Give the bytes of a panel's weights for some of the depth, rounded up."""
        w = self.spec.weights
        if isinstance(w, PlainWeights):
            return depth * PANEL * 4
        return -(-depth * w.block_bytes // w.block)
