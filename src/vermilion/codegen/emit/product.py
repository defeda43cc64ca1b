"""Products: convolutions and matrix products as one kernel over packed weights.

Channels lie last, and a pixel's border is in the buffer, so that for each tap of the kernel a run
of the input is contiguous: a convolution is a matrix product whose left side is read in place.

    for each patch of pixels and block of channels:
        accumulators = 0
        for each tap, for each group of the run:
            accumulators[pixel][vector] += input[pixel][group] × weights[group][vector]
        output = expression(accumulators, bias, residual, …)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.epilogue import Epilogue, reads_sums_as_integers
from vermilion.codegen.emit.register_tile import Prefetch, RegisterTile, Side, prefetch_line
from vermilion.codegen.emit.values import Index, Value
from vermilion.codegen.emit.walk import Access, begin_kernel, has_sizes, patches
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.codegen.tile import Tile
from vermilion.codegen.window import Window
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known

# Weights up to this size stay in the second-level cache while pixels pass by.
_CACHED_WEIGHT_BYTES = 512 * 1024
# A block of weights up to this size is asked for one block ahead, a larger one a few lines ahead.
_PREFETCH_BYTES = 256 * 1024
_PREFETCH_NEAR = 4096
# Patches along a row that one unit of work computes.
_SEGMENT_PATCHES = 8


@dataclass(frozen=True)
class ProductSpec:
    """A product over `images × rows × columns` pixels and `channels` outputs.

    Strides count elements. `run` values are contiguous in the input at each of
    `taps_y × taps_x` taps. The expression's operand 0 is the accumulator, as float32 where it is
    not read as an integer. `output` and `operands` are walked by image, row, column
    and channel.
    """

    numeric: NumericName
    images: int
    rows: int
    columns: int
    channels: int
    taps_y: int
    taps_x: int
    run: int
    in_image: int
    in_row: int
    in_column: int
    in_tap_y: int
    in_tap_x: int
    output: Access
    operands: tuple[Access, ...]
    expression: Expression
    tile: Tile

    family = "product"

    @property
    def groups(self) -> int:
        """Instructions' worth of a run."""
        return -(-self.run // NUMERICS[self.numeric].group)

    @property
    def steps(self) -> int:
        """Iterations of the inner loop for one patch."""
        return self.taps_y * self.taps_x * self.groups

    @property
    def row_tiles(self) -> int:
        """Patches from top to bottom."""
        return -(-self.rows // self.tile.rows)

    @property
    def segment(self) -> int:
        """Columns that one unit computes."""
        return self.tile.columns * _SEGMENT_PATCHES

    @property
    def segments(self) -> int:
        """Units along a row."""
        return -(-self.columns // self.segment)

    def block_channels(self, isa: Isa) -> int:
        """Channels in a block."""
        return self.tile.vectors * isa.lanes

    def blocks(self, isa: Isa) -> int:
        """Blocks of channels."""
        return -(-self.channels // self.block_channels(isa))

    @property
    def units(self) -> int:
        """Units of work. The number of channel blocks is part of the tile's choice."""
        return self.images * self.row_tiles * self.segments * self.channel_blocks

    # Set by `product_spec`, since a spec alone does not know the vector width.
    channel_blocks: int = 1
    # Whether accumulators start from the first operand, an int32 for each channel, not from 0.
    has_initial: bool = False
    # Each image has weights of its own, one set after the other.
    weights_per_image: bool = False
    # Of taps that lie in the border for all pixels of a patch, none is computed.
    window_y: Window | None = None
    window_x: Window | None = None
    # Numbers from one tap's first sums to the next's, where accumulators start from the sum of
    # those of the taps that are computed; 0 where one set stands for all taps.
    initial_row: int = 0

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and the tile functions that it calls."""
        f, pointers, units = begin_kernel(module, name, 3 + len(self.operands))
        with f.loop(*units) as unit:
            _Writer(self, module, name, isa).unit(f, unit, pointers)
        f.finish()


class _Writer:
    """Writes the tile functions of one product, each shape once."""

    def __init__(self, spec: ProductSpec, module: Module, name: str, isa: Isa) -> None:
        self.spec = spec
        self.module = module
        self.name = name
        self.isa = isa
        self.numeric = NUMERICS[spec.numeric]
        self.is_open = has_sizes(spec)

    def _sizes(self, f: Function) -> list[Value]:
        """Return what a tile function gets beside its pointers: where sizes lie."""
        return [f.arguments[0]] if self.is_open else []

    def unit(self, f: Function, unit: Value, pointers: Sequence[Value]) -> None:
        """Write the decoding of a unit and the loop over its patches."""
        s = self.spec
        blocks = s.blocks(self.isa)
        spatial = s.images * s.row_tiles * s.segments
        if self._pixels_first():
            block, rest = f.divide(unit, spatial), f.remainder(unit, spatial)
        else:
            rest, block = f.divide(unit, blocks), f.remainder(unit, blocks)
        segment, rest = f.remainder(rest, s.segments), f.divide(rest, s.segments)
        row_tile, image = f.remainder(rest, s.row_tiles), f.divide(rest, s.row_tiles)
        row = f.multiply(row_tile, s.tile.rows)
        first = f.multiply(segment, s.segment)
        last = f.minimum(f.add(first, s.segment), s.columns)
        self._choose_rows(f, (image, row, first, last, block), pointers)

    def _choose_rows(
        self, f: Function, where: tuple[Value, ...], pointers: Sequence[Value]
    ) -> None:
        s = self.spec
        if not is_known(s.rows):
            assert s.tile.rows == 1, "patches of several rows are for images of a known height"
            self._choose_vectors(f, 1, where, pointers)
            return
        rest = s.rows % s.tile.rows
        if not rest:
            self._choose_vectors(f, s.tile.rows, where, pointers)
        elif s.rows < s.tile.rows:
            self._choose_vectors(f, rest, where, pointers)
        else:
            is_full = f.compare("sle", where[1], f.index(s.rows - s.tile.rows))
            with f.when(is_full):
                self._choose_vectors(f, s.tile.rows, where, pointers)
            with f.when(is_full, holds=False):
                self._choose_vectors(f, rest, where, pointers)

    def _choose_vectors(
        self, f: Function, rows: int, where: tuple[Value, ...], pointers: Sequence[Value]
    ) -> None:
        s, isa = self.spec, self.isa
        whole = s.block_channels(isa)
        rest = s.channels % whole
        full_blocks = s.channels // whole
        if not rest:
            self._columns(f, (rows, s.tile.vectors, 0), where, pointers)
            return
        shape = (rows, -(-rest // isa.lanes), rest % isa.lanes)
        if not full_blocks:
            self._columns(f, shape, where, pointers)
            return
        is_full = f.compare("slt", where[4], f.index(full_blocks))
        with f.when(is_full):
            self._columns(f, (rows, s.tile.vectors, 0), where, pointers)
        with f.when(is_full, holds=False):
            self._columns(f, shape, where, pointers)

    def _columns(
        self,
        f: Function,
        shape: tuple[int, int, int],
        where: tuple[Value, ...],
        pointers: Sequence[Value],
    ) -> None:
        s = self.spec
        rows, vectors, tail = shape
        image, row, first, last, block = where
        width = s.tile.columns
        weights = f.at(pointers[1], f.multiply(block, self._block_bytes()))
        if s.weights_per_image:
            vectors_of_all = -(-s.channels // self.isa.lanes)
            set_bytes = s.steps * vectors_of_all * self._vector_bytes()
            weights = f.at(weights, f.multiply(image, set_bytes))
        channel = f.multiply(block, s.block_channels(self.isa))
        taps_y = None if s.window_y is None else s.window_y.write(f, row, rows)

        def call(columns: int, column: Value) -> None:
            name = self._tile(rows, columns, vectors, tail)
            source = self._source(f, pointers[0], image, row, column)
            outputs = [
                access.at(f, pointer, (image, row, column, channel))
                for pointer, access in zip(
                    (pointers[2], *pointers[3:]), (s.output, *s.operands), strict=True
                )
            ]
            taps_x = None if s.window_x is None else s.window_x.write(f, column, columns)
            start, counts = self._live(f, (source, weights, outputs), vectors, (taps_y, taps_x))
            f.call_void(name, [*start, *counts, *self._sizes(f)])

        if not is_known(s.columns):
            patches(f, first, last, width, call)
            return
        rest = s.columns % width
        whole_end = f.minimum(last, s.columns - rest) if rest else last
        if s.columns >= width:
            with f.loop(first, whole_end, width) as column:
                call(width, column)
        if rest:
            at_end = f.compare("eq", last, f.index(s.columns))
            with f.when(at_end):
                call(rest, f.index(s.columns - rest))

    def _live(
        self,
        f: Function,
        whole: tuple[Value, Value, list[Value]],
        vectors: int,
        live: tuple[tuple[Value, Value] | None, tuple[Value, Value] | None],
    ) -> tuple[list[Value], list[Value]]:
        """Return where a patch begins with the first of its taps, and how many it has."""
        s = self.spec
        source, weights, outputs = whole
        if s.window_y is None and s.window_x is None:
            return [source, weights, *outputs], []
        zero = f.index(0)
        first_y, first_x = (zero if taps is None else taps[0] for taps in live)
        counts = [taps[1] for taps in live if taps is not None]
        size = self.numeric.activation_bytes
        source = f.at(source, f.multiply(first_y, s.in_tap_y * size))
        source = f.at(source, f.multiply(first_x, s.in_tap_x * size))
        tap = f.add(f.multiply(first_y, s.taps_x), first_x)
        weights = f.at(weights, f.multiply(tap, s.groups * vectors * self._vector_bytes()))
        start = [source, weights, *outputs]
        if s.initial_row:  # the sums of the taps lie behind those that every pixel has
            start.append(f.at(outputs[1], f.multiply(f.add(tap, 1), 4 * s.initial_row)))
        return start, counts

    def _source(self, f: Function, base: Value, image: Value, row: Value, column: Value) -> Value:
        s, size = self.spec, self.numeric.activation_bytes
        offset = f.multiply(image, s.in_image * size)
        offset = f.add(offset, f.multiply(row, s.in_row * size))
        return f.at(base, f.add(offset, f.multiply(column, s.in_column * size)))

    def _block_bytes(self) -> int:
        return self.spec.steps * self.spec.tile.vectors * self._vector_bytes()

    def _vector_bytes(self) -> int:
        """Bytes of the weights of one group, for one vector of channels."""
        return self.numeric.parts * self.isa.vector_bytes

    # The tile ---------------------------------------------------------------------------------

    def _tile(self, rows: int, columns: int, vectors: int, tail: int) -> str:
        name = f"{self.name}_{rows}x{columns}x{vectors}_{tail}"
        if self.module.has(name):
            return name
        s = self.spec
        labels = ["source", "weights", "output", *(f"operand{i}" for i in range(len(s.operands)))]
        labels += ["starts"] if s.initial_row else []
        parameters = [(label, "ptr") for label in labels]
        windows = (("count_y", s.window_y), ("count_x", s.window_x))
        parameters += [(label, "i64") for label, window in windows if window is not None]
        parameters += [("sizes", "ptr")] if self.is_open else []
        f = Function(self.module, name, parameters)
        if self.is_open:
            f.take_sizes(f.arguments[-1], 8 * (3 + len(self.spec.operands)))
        pixels = [(y, x) for y in range(rows) for x in range(columns)]
        tile = self._multiply(f, pixels, vectors)
        self._finish(f, pixels, tile, tail)
        f.finish()
        return name

    def _counts(self, f: Function) -> tuple[Index, Index]:
        """Return how many taps a patch has, down and along a row."""
        s = self.spec
        place = 3 + len(s.operands) + bool(s.initial_row)
        count_y: Index = s.taps_y if s.window_y is None else f.arguments[place]
        place += s.window_y is not None
        count_x: Index = s.taps_x if s.window_x is None else f.arguments[place]
        return count_y, count_x

    def _multiply(
        self, f: Function, pixels: Sequence[tuple[int, int]], vectors: int
    ) -> RegisterTile:
        s, isa = self.spec, self.isa
        size = self.numeric.activation_bytes
        tile = RegisterTile(f, isa, s.numeric, len(pixels), vectors)
        counts = self._counts(f)
        if s.has_initial:
            tile.start(self._initial(f, tile, counts))
        offsets = [(y * s.in_row + x * s.in_column) * size for y, x in pixels]
        weights = f.slot(f.arguments[1])
        tap_bytes = s.groups * tile.step_bytes
        with f.loop(0, counts[0]) as tap_y:
            line = f.at(f.arguments[0], f.multiply(tap_y, s.in_tap_y * size))
            with f.loop(0, counts[1]) as tap_x:
                run = f.at(line, f.multiply(tap_x, s.in_tap_x * size))
                panel = weights.get()
                right = Side(panel, tile.step_bytes, align=min(64, isa.vector_bytes))
                sides = (Side(run, offsets=offsets), right)
                is_odd = self.numeric.has_odd_value(s.run)
                whole, prefetch = s.groups - is_odd, self._prefetch(f, panel, tile.step_bytes)
                tile.multiply_steps(*sides, whole, prefetch=prefetch, in_runs=False)
                if is_odd:
                    tile.multiply_last(*sides, whole)
                weights.set(f.at(panel, tap_bytes))
            if s.window_x is not None:  # over the taps of this row that are left out
                left = f.subtract(s.taps_x, counts[1])
                weights.set(f.at(weights.get(), f.multiply(left, tap_bytes)))
        return tile

    def _initial(self, f: Function, tile: RegisterTile, counts: tuple[Index, Index]) -> list[Value]:
        """Return what accumulators start from: of taps that are computed alone, their sum."""
        s = self.spec
        places = [n * self.isa.vector_bytes for n in range(tile.vectors)]
        whole = [f.load(tile.sum_type, f.arguments[3], at, align=4) for at in places]
        if not s.initial_row:
            return whole
        sums = [f.slot(value) for value in whole]
        starts = f.arguments[3 + len(s.operands)]
        with f.loop(0, counts[0]) as tap_y, f.loop(0, counts[1]) as tap_x:
            tap = f.add(f.multiply(tap_y, s.taps_x), tap_x)
            here = f.at(starts, f.multiply(tap, 4 * s.initial_row))
            for slot, at in zip(sums, places, strict=True):
                slot.set(f.binary("add", slot.get(), f.load(tile.sum_type, here, at, align=4)))
        return [slot.get() for slot in sums]

    def _prefetch(self, f: Function, panel: Value, step_bytes: int) -> Prefetch | None:
        """Return what asks for the weights after this block, where they exceed a cache.

        The first pass over a block would otherwise wait for memory, while later passes have time.
        """
        if not (self._pixels_first() or self.spec.weights_per_image):
            return None
        ahead = self._block_bytes() if self._block_bytes() <= _PREFETCH_BYTES else _PREFETCH_NEAR

        def ask(step: Value) -> None:
            here = f.at(panel, f.multiply(step, step_bytes))
            for line in range(0, step_bytes, 64):
                prefetch_line(f, f.at(here, ahead + line))

        return ask

    def _pixels_first(self) -> bool:
        """Say whether a unit's neighbours share its weights rather than its pixels."""
        return self.spec.blocks(self.isa) * self._block_bytes() > _CACHED_WEIGHT_BYTES

    def _finish(
        self,
        f: Function,
        pixels: Sequence[tuple[int, int]],
        tile: RegisterTile,
        tail: int,
    ) -> None:
        """Write the epilogue: expression and store, pixel by pixel."""
        s = self.spec
        arithmetic = Arithmetic(f, self.isa.lanes)
        pointers = f.arguments[2 : 3 + len(s.operands)]
        epilogue = Epilogue(arithmetic, (s.expression,), (s.output,), s.operands, pointers)
        to_float = self.numeric.accumulator == "i32" and not reads_sums_as_integers(s.expression)
        for (y, x), row in zip(pixels, tile.accumulators, strict=True):
            for n, slot in enumerate(row):
                total = slot.get()
                if to_float:
                    total = f.convert("sitofp", total, arithmetic.type("float"))
                mask = arithmetic.tail_mask(tail) if tail and n == tile.vectors - 1 else None
                epilogue.finish((0, y, x, n * self.isa.lanes), [total], mask)
