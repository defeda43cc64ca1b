"""Products in bfloat16 or float32 whose weights are unpacked where they are used.

A panel of weights is unpacked, some hundred values of the depth at a time, into a buffer that
stays in the first-level cache, and all rows pass over it: no copy of the weights is kept. While
rows are multiplied with one buffer, the next one is filled: a piece in each of the first tiles,
between their multiply-adds, by those parts of a core that these leave idle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.panel_tile import ROW_TILES, Gate, PanelTiles, Run
from vermilion.codegen.emit.decoder.unpack import Whole
from vermilion.codegen.emit.decoder.weights import LANES, PANEL, PlainWeights, Weights
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa

# Values of the depth that are unpacked at a time, about: 32 columns of them are 16 KiB in bfloat16,
# so that a tile's rows and the next buffer have room beside them in the first-level cache (48 KiB
# on Zen 5).
_RUN = 256
# Panels that are computed together: their sums and a run of what they read are 512 KiB for 512
# rows. Of fewer rows, more panels.
_GROUP = 4


@dataclass(frozen=True)
class PanelProductSpec:
    """out[row] = rows · weights (+ bias): float32 rows of `out_row` numbers.

    Arguments: control, rows, weights, out, and the bias if there is one. Rows are computed four at
    a time: buffers have room for what is read and written beyond the last. With `gate`, what is
    written are rows for the next product instead, and `out_row` is 0. Of more than `most_rows` it
    computes none.
    """

    numeric: Literal["bf16", "f32"]
    weights: Weights
    rows: ActivationLayout
    out_row: int
    has_bias: bool
    max_rows: int
    is_single: bool  # one row at a time: the float32 product of decoding
    gate: Gate | None = None
    most_rows: int | None = None

    family = "panel_product"

    @property
    def units(self) -> int:
        """One unit a panel of columns, or one of each half."""
        return self.weights.panels // (2 if self.gate else 1)

    @property
    def is_unpacked(self) -> bool:
        """Whether the weights are in memory as the product reads them."""
        w = self.weights
        return isinstance(w, PlainWeights) and w.storage == self.numeric == "f32"

    @property
    def run(self) -> int:
        """Values of the depth that are unpacked at a time: whole blocks."""
        if self.is_unpacked:
            return self.weights.depth
        step = LANES if isinstance(self.weights, PlainWeights) else self.weights.step
        runs = max(1, round(self.weights.depth / _RUN))
        return -(-self.weights.depth // (runs * step)) * step

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, (begin, end) = begin_kernel(module, name, 4 + self.has_bias)
        tiles = PanelTiles(
            module, name, isa, self.numeric, self.rows, Whole(self.weights, self.rows.kind),
            self.has_bias, self.out_row, self.gate,
        )  # fmt: skip
        if self.is_single:
            _write_single(self, f, tiles, pointers)
        else:
            if self.most_rows is not None:
                count = Control(f, pointers[0]).rows
                is_less = f.compare("sle", count, f.index(self.most_rows))
                end = f.select(is_less, end, begin)
            _Writer(self, f, tiles, pointers).panels(begin, end)
        f.finish()


def _write_single(
    spec: PanelProductSpec, f: Function, tiles: PanelTiles, pointers: list[Value]
) -> None:
    """Write the product of one row after the other, straight from the weights."""
    assert spec.is_unpacked, "weights in blocks are multiplied as whole numbers"
    control, rows, weights, out, *bias = pointers
    no_sums = Value("ptr", "null")
    name = tiles.tile(1, Run(spec.weights.depth, is_first=True, is_last=True))
    _, begin, end = f.arguments
    with f.loop(begin, end) as panel, f.loop(0, Control(f, control).rows) as row:
        column = f.multiply(panel, PANEL * 4)
        arguments = [
            f.at(rows, f.multiply(row, spec.rows.row_bytes)),
            f.at(weights, f.multiply(panel, spec.weights.panel_bytes)),
            no_sums,
            f.at(f.at(out, column), f.multiply(row, spec.out_row * 4)),
            *(f.at(one, column) for one in bias),
        ]
        f.call_void(name, arguments)


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


_Tiles = Callable[[Value, Value, int, _Filling | None], None]


class _Writer:
    def __init__(
        self, spec: PanelProductSpec, f: Function, tiles: PanelTiles, pointers: list[Value]
    ) -> None:
        self.spec = spec
        self.f = f
        self.tiles = tiles
        control, self.rows, self.weights, self.out, *self.bias = pointers
        self.count = Control(f, control).rows
        self.fours = f.multiply(f.divide(f.add(self.count, 3), 4), 4)
        # The sums of a group of panels, one panel's rows after the other's, until they are whole.
        self.sums = f.scratch(_GROUP * (spec.max_rows + 3) * PANEL * 4)
        self.panel_bytes = f.multiply(self.fours, PANEL * 4)
        self.group = f.index(_GROUP)
        for times in (2, 4):
            is_few = f.compare("sle", self.fours, f.index(spec.max_rows // times))
            self.group = f.select(is_few, f.index(_GROUP * times), self.group)
        # What rows are multiplied with, and what is filled meanwhile: they take turns.
        size = spec.run * PANEL * tiles.value_bytes
        self.buffers: list[Slot] = []
        if not spec.is_unpacked:
            self.buffers = [f.slot(f.scratch(size)) for _ in range(2)]

    def panels(self, begin: Value, end: Value) -> None:
        """Write a range of panels: a few of them together, their depth in runs.

        What the rows hold in a run stays in the second-level cache for all panels of a group.
        """
        s, f = self.spec, self.f
        run, depth = s.run, s.weights.depth
        if s.gate is not None:
            begin, end = f.multiply(begin, 2), f.multiply(end, 2)
        if self.buffers:
            with f.when(f.compare("slt", begin, end)):
                last = f.minimum(f.add(begin, self.group), end)
                first_run = _Place(begin, begin, last, f.index(0))
                self._unpack(self._filling(first_run, end, self.buffers[0]), f.index(0))
        with f.loop(begin, end, self.group) as first:
            last = f.minimum(f.add(first, self.group), end)

            def run_at(start: Value, run: Run) -> None:
                together = 2 if self.tiles.is_gated(run) else 1
                with f.loop(first, last, together) as panel:
                    if together == 2:  # what gates is added up, for the other half to find
                        sums = replace(run, is_last=False)
                        self._run(_Place(first, panel, last, start), end, sums)
                        panel = f.add(panel, 1)
                    self._run(_Place(first, panel, last, start), end, run)

            final = (-(-depth // run) - 1) * run
            run_at(f.index(0), Run(min(run, depth), is_first=True, is_last=not final))
            if final > run:
                with f.loop(run, final, run) as start:
                    run_at(start, Run(run, is_first=False, is_last=False))
            if final:
                run_at(f.index(final), Run(depth - final, is_first=False, is_last=True))

    def _run(self, place: _Place, end: Value, run: Run) -> None:
        """Write a run of one panel."""
        f, s = self.f, self.spec
        number = f.subtract(place.panel, place.first)
        sums = f.at(self.sums, f.multiply(number, self.panel_bytes))
        gates = f.at(self.sums, f.multiply(f.subtract(number, 1), self.panel_bytes))
        halves = 2 if s.gate else 1
        column = f.multiply(f.divide(place.panel, halves), PANEL * self.tiles.out_item_bytes)
        out = f.at(self.out, column)
        bias = []
        if self.bias and run.is_first:
            bias = [f.at(self.bias[0], f.multiply(self._panel(place.panel), PANEL * 4))]
        right = self._weights_at(place.panel, place.start)
        filling = None
        if self.buffers:
            filling = self._filling(self._after(place, end), end, self.buffers[1])
            right = self.buffers[0].get()
        source = f.at(self.rows, f.multiply(place.start, self.tiles.value_bytes))

        def tiles(begin: Value, stop: Value, size: int, filling: _Filling | None) -> None:
            name = self.tiles.tile(size, run, is_filling=filling is not None)
            with f.loop(begin, stop, size) as row:
                arguments = [
                    f.at(source, f.multiply(row, s.rows.row_bytes)), right,
                    f.at(sums, f.multiply(row, PANEL * 4)),
                ]  # fmt: skip
                if run.is_last:
                    arguments.append(f.at(out, f.multiply(row, self.tiles.out_bytes)))
                if self.tiles.is_gated(run):
                    arguments.append(f.at(gates, f.multiply(row, PANEL * 4)))
                arguments += bias
                if filling is not None:
                    piece = f.divide(row, size)
                    arguments += [filling.weights, filling.ahead, piece, filling.target]
                f.call_void(name, arguments)

        self._all_rows(tiles, filling)

    def _all_rows(self, tiles: _Tiles, filling: _Filling | None) -> None:
        """Write the tiles of all rows; the first of them fill the other buffer."""
        f = self.f
        largest = ROW_TILES[0]
        begin = shared = f.index(0)
        if filling is not None and self.tiles.can_fill:
            shared = f.minimum(filling.pieces, f.divide(self.fours, largest))
            begin = f.multiply(shared, largest)
            tiles(f.index(0), begin, largest, filling)
        for size in ROW_TILES:
            stop = f.subtract(self.fours, f.remainder(f.subtract(self.fours, begin), size))
            tiles(begin, stop, size, None)
            begin = stop
        if filling is not None:
            self._unpack(filling, shared)
            filled, used = (buffer.get() for buffer in reversed(self.buffers))
            self.buffers[0].set(filled)
            self.buffers[1].set(used)

    def _unpack(self, filling: _Filling, begin: Value) -> None:
        """Write the unpacking of the pieces from some on."""
        with self.f.loop(begin, filling.pieces) as piece:
            arguments = [filling.weights, filling.ahead, piece, filling.target]
            self.f.call_void(self.tiles.unpacking(), arguments)

    def _filling(self, place: _Place, end: Value, buffer: Slot) -> _Filling:
        """Return the unpacking of a run of a panel; it has no pieces behind the last panel."""
        f = self.f
        ahead = self._after(place, end)
        left = f.subtract(self._padded(self.spec.weights.depth), place.start)
        pieces = f.divide(f.minimum(left, self.spec.run), self.tiles.filler.piece)
        is_there = f.compare("slt", place.panel, end)
        return _Filling(
            self._weights_at(place.panel, place.start),
            f.select(is_there, pieces, f.index(0)),
            buffer.get(),
            self._weights_at(ahead.panel, ahead.start),
        )

    def _after(self, place: _Place, end: Value) -> _Place:
        """Return what comes after a run of a panel.

        The next panel, the next run, the next group.
        """
        f, s = self.f, self.spec
        panel, start = f.add(place.panel, 1), f.add(place.start, s.run)
        is_inside = f.compare("slt", panel, place.last)
        is_deeper = f.compare("slt", start, f.index(s.weights.depth))
        stays = f.binary("or", is_inside, is_deeper)
        return _Place(
            f.select(stays, place.first, place.last),
            f.select(is_inside, panel, f.select(is_deeper, place.first, place.last)),
            f.select(stays, place.last, f.minimum(f.add(place.last, self.group), end)),
            f.select(is_inside, place.start, f.select(is_deeper, start, f.index(0))),
        )

    def _padded(self, depth: int) -> int:
        w = self.spec.weights
        return depth if isinstance(w, PlainWeights) else -(-depth // w.block) * w.block

    def _panel(self, number: Value) -> Value:
        """Return which panel is computed as one of some number: halves of a gate take turns."""
        f, s = self.f, self.spec
        if s.gate is None:
            return number
        half = f.multiply(f.remainder(number, 2), s.weights.panels // 2)
        return f.add(f.divide(number, 2), half)

    def _weights_at(self, number: Value, start: Value) -> Value:
        """Return a panel's weights from some depth on."""
        w, f = self.spec.weights, self.f
        weights = f.at(self.weights, f.multiply(self._panel(number), w.panel_bytes))
        if isinstance(w, PlainWeights):
            return f.at(weights, f.multiply(start, w.row_bytes))
        return f.at(weights, f.multiply(f.divide(start, w.step), w.step_bytes))
