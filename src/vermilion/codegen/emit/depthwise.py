"""Depthwise convolution: each channel with its own small kernel, vectors of channels at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.depthwise_taps import TapLoops, Taps
from vermilion.codegen.emit.epilogue import Epilogue
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import Access, begin_kernel, has_sizes, patches
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.codegen.window import Window
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known, is_one, same

# Taps from which on kernels are loops, and their weights lie vector by vector: [vector][tap][lane].
_MANY_TAPS = 36
# Units below which the channels are shared too, and the channels of such a part.
_MANY_UNITS = 16
_PART_CHANNELS = 64


def channel_parts(lines: int, channels: int) -> int:
    """Return in how many parts channels are shared, where there are so many lines of pixels."""
    if not is_known(lines):
        return 1
    wanted = -(-_MANY_UNITS // lines)
    return max(1, min(wanted, channels // _PART_CHANNELS))


@dataclass(frozen=True)
class DepthwiseSpec:
    """`out[pixel][c] = expression(Σ over taps of in[pixel, tap][c] × weights[tap][c])`.

    Strides count elements; the border is in the input's buffer. Weights are float32, [tap][c];
    those of large kernels [vector][tap][lane]. `window_y` and `window_x` say which taps of a large
    kernel lie in a border of zeros.
    """

    storage: Storage
    images: int
    rows: int
    columns: int
    channels: int
    taps_y: int
    taps_x: int
    in_image: int
    in_row: int
    in_column: int
    in_tap_y: int
    in_tap_x: int
    output: Access
    operands: tuple[Access, ...]
    expression: Expression
    window_y: Window | None = None
    window_x: Window | None = None

    family = "depthwise"

    @property
    def is_large(self) -> bool:
        """Whether the taps are loops."""
        return self.taps_y * self.taps_x >= _MANY_TAPS

    @property
    def tile_rows(self) -> int:
        """Rows computed together: two share most of what they read, where they overlap so."""
        overlap = same(self.in_row, self.in_tap_y) and self.taps_y > 1
        return 2 if overlap and not is_one(self.rows) else 1

    @property
    def row_tiles(self) -> int:
        """Pairs of rows, or rows."""
        return -(-self.rows // self.tile_rows)

    @property
    def channel_parts(self) -> int:
        """Parts of the channels that are units of their own, where there are few rows."""
        return channel_parts(self.images * self.row_tiles, self.channels)

    @property
    def units(self) -> int:
        """One unit a row or pair of rows, and part of the channels."""
        return self.images * self.row_tiles * self.channel_parts

    def pixels(self, isa: Isa) -> int:
        """Pixels computed side by side: independent sums hide the latency of each."""
        most = 8 if isa.registers == 32 else 6 // self.tile_rows
        return min(self.columns, most) if is_known(self.columns) else most

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and its tiles."""
        f, pointers, units = begin_kernel(module, name, 3 + len(self.operands))
        vectors = -(-self.channels // isa.lanes)
        making = (module, name, isa)
        with f.loop(*units) as unit:
            part, rest = f.remainder(unit, self.channel_parts), f.divide(unit, self.channel_parts)
            image, tile = f.divide(rest, self.row_tiles), f.remainder(rest, self.row_tiles)
            row = f.multiply(tile, self.tile_rows)
            first = f.divide(f.multiply(part, vectors), self.channel_parts)
            last = f.divide(f.multiply(f.add(part, 1), vectors), self.channel_parts)
            tail = self.channels % isa.lanes
            whole = f.minimum(last, f.index(vectors - 1)) if tail else last
            with f.loop(first, whole) as vector:
                self._rows(f, making, (image, row, vector), pointers, 0)
            if tail:
                with f.when(f.compare("eq", f.index(last), f.index(vectors))):
                    self._rows(f, making, (image, row, f.index(vectors - 1)), pointers, tail)
        f.finish()

    def _rows(
        self,
        f: Function,
        making: tuple[Module, str, Isa],
        where: tuple[Value, Value, Value],
        pointers: Sequence[Value],
        tail: int,
    ) -> None:
        """Write the rows of a unit: a last row may have no second."""
        if is_known(self.rows) and self.rows % self.tile_rows == 0:
            self._row(f, making, where, pointers, self.tile_rows, tail)
            return
        is_full = f.compare("slt", where[1], f.index(self.rows - 1))
        with f.when(is_full):
            self._row(f, making, where, pointers, self.tile_rows, tail)
        with f.when(is_full, holds=False):
            self._row(f, making, where, pointers, 1, tail)

    def _row(
        self,
        f: Function,
        making: tuple[Module, str, Isa],
        where: tuple[Value, Value, Value],
        pointers: Sequence[Value],
        rows: int,
        tail: int,
    ) -> None:
        module, name, isa = making
        width = self.pixels(isa)
        image, row, vector = where
        channel = f.multiply(vector, isa.lanes)
        taps = self.taps_y * self.taps_x if self.is_large else 1
        weights = f.at(pointers[1], f.multiply(channel, 4 * taps))
        # A line is a tap of one row or of the next, and in the image or not for both.
        window = self.window_y and replace(self.window_y, taps=self.taps_y + rows - 1)
        lines = window.write(f, row, 1) if window else ()

        def call(columns: int, column: Value) -> None:
            tile = self._tile(module, name, isa, (rows, columns), tail)
            size = STORAGE_BYTES[self.storage]
            offset = f.multiply(image, self.in_image * size)
            offset = f.add(offset, f.multiply(row, self.in_row * size))
            offset = f.add(offset, f.multiply(column, self.in_column * size))
            source = f.at(pointers[0], f.add(offset, f.multiply(channel, size)))
            targets = [
                access.at(f, pointer, (image, row, column, channel))
                for pointer, access in zip(pointers[2:], (self.output, *self.operands), strict=True)
            ]
            sizes = [f.arguments[0]] if has_sizes(self) else []
            live = self.window_x.write(f, column, columns) if self.window_x else ()
            f.call_void(tile, [source, weights, *targets, *lines, *live, *sizes])

        if not is_known(self.columns):
            patches(f, 0, self.columns, width, call)
            return
        rest = self.columns % width
        with f.loop(0, self.columns - rest, width) as column:
            call(width, column)
        if rest:
            call(rest, f.index(self.columns - rest))

    def _tile(self, module: Module, name: str, isa: Isa, shape: tuple[int, int], tail: int) -> str:
        rows, columns = shape
        tile = f"{name}_{rows}x{columns}_{tail}"
        if module.has(tile):
            return tile
        labels = [
            "source",
            "weights",
            "output",
            *(f"operand{i}" for i in range(len(self.operands))),
        ]
        parameters = [(label, "ptr") for label in labels]
        for axis, window in (("y", self.window_y), ("x", self.window_x)):
            names = (f"first_{axis}", f"count_{axis}") if window else ()
            parameters += [(label, "i64") for label in names]
        parameters += [("sizes", "ptr")] if has_sizes(self) else []
        f = Function(module, tile, parameters)
        if has_sizes(self):
            f.take_sizes(f.arguments[-1], 8 * (3 + len(self.operands)))
        arithmetic = Arithmetic(f, isa.lanes)
        mask = arithmetic.tail_mask(tail) if tail else None
        totals = (
            self._sums_of_loops(arithmetic, shape, mask)
            if self.is_large
            else self._sums(arithmetic, shape, mask)
        )
        epilogue = Epilogue(
            arithmetic, (self.expression,), (self.output,), self.operands,
            f.arguments[2 : 3 + len(self.operands)],
        )  # fmt: skip
        for r, row in enumerate(totals):
            for p, total in enumerate(row):
                epilogue.finish((0, r, p, 0), [total], mask)
        f.finish()
        return tile

    def _sums_of_loops(
        self, arithmetic: Arithmetic, shape: tuple[int, int], mask: Value | None
    ) -> list[list[Value]]:
        """Return the sums of a patch, by row and column, of a large kernel."""
        f, zero = arithmetic.f, arithmetic.math.number(0.0)
        totals = [[f.slot(zero) for _ in range(shape[1])] for _ in range(shape[0])]
        numbers = iter(f.arguments[3 + len(self.operands) :])
        lines = (next(numbers), next(numbers)) if self.window_y else None
        taps = (next(numbers), next(numbers)) if self.window_x else None
        kernel = Taps(
            self.storage, self.taps_y, self.taps_x, self.in_column, self.in_tap_y, self.in_tap_x
        )
        load = partial(self.load, arithmetic)
        TapLoops(kernel, arithmetic, totals, load, mask).write(lines, taps)
        return [[slot.get() for slot in row] for row in totals]

    def _sums(
        self, arithmetic: Arithmetic, shape: tuple[int, int], mask: Value | None
    ) -> list[list[Value]]:
        """Return the sums of a patch, by row and column, all taps written out."""
        f, (rows, columns) = arithmetic.f, shape
        totals = [[arithmetic.math.number(0.0) for _ in range(columns)] for _ in range(rows)]
        size = STORAGE_BYTES[self.storage]

        def weight(y: int, x: int) -> Value:
            at = (y * self.taps_x + x) * self.channels * 4
            return arithmetic.load("f32", f.at(f.arguments[1], at), mask=mask)

        # A line of input is read once for all rows of output that it touches.
        for line in range(self.taps_y + rows - 1):
            values: dict[str, Value] = {}
            for x in range(self.taps_x):
                for r in range(rows):
                    if not 0 <= line - r < self.taps_y:
                        continue
                    factor = weight(line - r, x)
                    for p in range(columns):
                        offset = line * self.in_tap_y + x * self.in_tap_x + p * self.in_column
                        key = str(offset)
                        if key not in values:
                            place = f.at(f.arguments[0], offset * size)
                            values[key] = self.load(arithmetic, place, mask)
                        totals[r][p] = arithmetic.math.fma(values[key], factor, totals[r][p])
        return totals

    def load(self, arithmetic: Arithmetic, place: Value, mask: Value | None) -> Value:
        """Load one vector of input as floats."""
        value = arithmetic.load(self.storage, place, mask=mask)
        if KIND_OF_STORAGE[self.storage] == "int":
            value = arithmetic.f.convert("sitofp", value, arithmetic.type("float"))
        return value
