"""Products of many rows in bfloat16 with seven multiplications of quarters instead of eight.

Two panels of columns and the two halves of the depth are the quarters of the weights. Their sums
are made where weights are unpacked, one of the seven and a run of the depth at a time, and stay in
the first-level cache while the rows' sums, made before, pass over them. See `codegen/strassen.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.decoder.activation_layout import write_vector
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.lanes import signed_sum
from vermilion.codegen.emit.decoder.panel_tile import Gate, PanelTiles, Run
from vermilion.codegen.emit.decoder.row import source_value
from vermilion.codegen.emit.decoder.strassen_rows import HalvedRows, half_of
from vermilion.codegen.emit.decoder.unpack_sums import Sum
from vermilion.codegen.emit.decoder.weights import LANES, PANEL, VECTORS, BlockWeights
from vermilion.codegen.emit.register_tile import prefetch_line
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.strassen import PRODUCTS, RESULTS

_ROW_TILES = (12, 8, 4)
# Rows of products and results that are asked for ahead of joining them.
_AHEAD_ROWS = 4


@dataclass(frozen=True)
class SevenProductsSpec:
    """out[row] = rows · weights (+ bias): float32 rows of `out_row` numbers.

    Arguments: control, sums of rows, weights, out, and the bias if there is one. It does nothing
    for less than `least_rows`. With `gate`, what is written are rows for the next product instead,
    and `out_row` is 0.
    """

    weights: BlockWeights
    rows: HalvedRows
    out_row: int
    has_bias: bool
    least_rows: int
    gate: Gate | None = None

    family = "seven_products"

    @property
    def units(self) -> int:
        """One unit two panels of columns."""
        return self.weights.panels // 2

    @property
    def max_rows(self) -> int:
        """Rows that there may be."""
        return self.rows.max_rows

    @property
    def out_item_bytes(self) -> int:
        """Bytes of a number of the rows that are written."""
        return 4 if self.gate is None or self.gate.form.kind == "f32" else 2

    @property
    def out_row_bytes(self) -> int:
        """Bytes from one row that is written to the next."""
        return self.out_row * 4 if self.gate is None else self.gate.form.row_bytes

    @property
    def product_bytes(self) -> int:
        """Bytes of a product of half of the rows and a panel, in float32."""
        return self.rows.max_rows // 2 * PANEL * 4

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        w, rows = self.weights, self.rows
        assert w.panels % 2 == 0 == rows.depth % w.block, "quarters are whole panels and blocks"
        assert rows.run % w.block == 0, "runs are whole blocks"
        f, pointers, (begin, end) = begin_kernel(module, name, 4 + self.has_bias)
        count = Control(f, pointers[0]).rows
        is_many = f.compare("sge", count, f.index(self.least_rows))
        _Writer(self, f, isa, count, pointers).pairs(begin, f.select(is_many, end, begin))
        f.finish()


@dataclass(frozen=True)
class _Side:
    """One of the sums of weights: of which pair of panels, from which depth on, and which."""

    pair: Value
    start: Value
    number: int


@dataclass(frozen=True)
class _Filling:
    """What is unpacked while rows are multiplied: from where, in how many pieces, and where to."""

    tiles: PanelTiles
    places: tuple[Value, ...]
    pieces: Value
    target: Value


class _Writer:
    def __init__(
        self,
        spec: SevenProductsSpec,
        f: Function,
        isa: Isa,
        count: Value,
        pointers: Sequence[Value],
    ) -> None:
        self.spec = spec
        self.f = f
        _, self.sums, self.weights, self.out, *self.bias = pointers
        self.half = half_of(f, count)
        # What rows are multiplied with, and what is filled meanwhile: they take turns.
        self.buffers = [f.slot(f.scratch(spec.rows.run * PANEL * 2)) for _ in range(2)]
        # The products of a pair of panels until they are whole.
        self.products = f.scratch(len(PRODUCTS) * spec.product_bytes)
        # Of each way to fill a panel its own.
        self.tiles = {
            sign: PanelTiles(
                f.module, f"{f.name}_sign{sign + 1}", isa, "bf16", spec.rows.part,
                Sum(spec.weights, sign), asks_for_rows=True,
            )
            for sign in (1, 0, -1)
        }  # fmt: skip

    def pairs(self, begin: Value, end: Value) -> None:
        """Write a range of pairs of panels: one product after the other, their depth in runs.

        The sums of a product, and the two panels, stay in the caches; what is read of the rows is
        asked for.
        """
        f, rows = self.f, self.spec.rows
        final = (rows.runs - 1) * rows.run
        with f.when(f.compare("slt", begin, end)):
            first = self._filling(_Side(begin, f.index(0), 0), end, self.buffers[0])
            self._unpack(first, f.index(0))
        with f.loop(begin, end) as pair:
            for number in range(len(PRODUCTS)):
                self._clear(number)
                if final:
                    with f.loop(0, final, rows.run) as start:
                        after = _Side(pair, f.add(start, rows.run), number)
                        self._product(_Side(pair, start, number), after, end, rows.run)
                side = _Side(pair, f.index(final), number)
                self._product(side, self._following(side), end, rows.depth - final)
            self._join(pair)

    def _following(self, side: _Side) -> _Side:
        """Return the first run of the next product of a pair, or of the next pair."""
        zero = self.f.index(0)
        if side.number + 1 < len(PRODUCTS):
            return _Side(side.pair, zero, side.number + 1)
        return _Side(self.f.add(side.pair, 1), zero, 0)

    def _product(self, side: _Side, after: _Side, end: Value, depth: int) -> None:
        """Write a run of one product: all rows; the first tiles fill the panel `after`."""
        f, rows = self.f, self.spec.rows
        sums = f.at(self.sums, f.multiply(f.divide(side.start, rows.run), rows.run_bytes))
        sums = f.at(sums, side.number * rows.sum_bytes)
        product = f.at(self.products, side.number * self.spec.product_bytes)
        used = self.buffers[0].get()
        filling = self._filling(after, end, self.buffers[1])
        run = Run(depth, is_first=False, is_last=False)

        def tiles(begin: Value, stop: Value, size: int, *, is_filling: bool = False) -> None:
            writer = filling.tiles if is_filling else self.tiles[0]
            name = writer.tile(size, run, is_filling=is_filling)
            with f.loop(begin, stop, size) as row:
                arguments = [
                    f.at(sums, f.multiply(row, rows.part.row_bytes)), used,
                    f.at(product, f.multiply(row, PANEL * 4)),
                ]  # fmt: skip
                if is_filling:
                    arguments += [*filling.places, f.divide(row, size), filling.target]
                f.call_void(name, arguments)

        largest = _ROW_TILES[0]
        rest = f.remainder(self.half, largest)
        # Four rows that are left do not keep a core busy: with a tile of twelve they are two of 8.
        is_odd = f.compare("eq", rest, f.index(4))
        is_long = f.compare("sge", self.half, f.index(largest + 4))
        more = f.select(f.binary("and", is_odd, is_long), f.index(largest), f.index(0))
        whole = f.subtract(self.half, f.add(rest, more))
        filled = f.minimum(filling.pieces, f.divide(whole, largest))
        begin = f.multiply(filled, largest)
        tiles(f.index(0), begin, largest, is_filling=True)
        for size in _ROW_TILES:
            stop = whole
            if size < largest:
                stop = f.subtract(self.half, f.remainder(f.subtract(self.half, begin), size))
            tiles(begin, stop, size)
            begin = stop
        self._unpack(filling, filled)
        self.buffers[0].set(filling.target)
        self.buffers[1].set(used)

    def _clear(self, number: int) -> None:
        """Write zeros to a product."""
        f = self.f
        zero = Value(f"<{LANES} x float>", "zeroinitializer")
        product = f.at(self.products, number * self.spec.product_bytes)
        with f.loop(0, f.multiply(self.half, PANEL * 4), LANES * 4) as at:
            f.store(zero, f.at(product, at), align=64)

    def _unpack(self, filling: _Filling, begin: Value) -> None:
        """Write the unpacking of the pieces from some on."""
        with self.f.loop(begin, filling.pieces) as piece:
            arguments = [*filling.places, piece, filling.target]
            self.f.call_void(filling.tiles.unpacking(), arguments)

    def _filling(self, side: _Side, end: Value, buffer: Slot) -> _Filling:
        """Return the unpacking of a side; behind the last pair it has no pieces."""
        f, rows = self.f, self.spec.rows
        _, (_, *rest) = PRODUCTS[side.number]
        tiles = self.tiles[rest[0][1] if rest else 0]
        left = f.minimum(f.subtract(f.index(rows.depth), side.start), rows.run)
        is_there = f.compare("slt", side.pair, end)
        pieces = f.select(is_there, f.divide(left, tiles.filler.piece), f.index(0))
        places = (*self._places(side), *self._ahead(side))
        return _Filling(tiles, places, pieces, buffer.get())

    def _ahead(self, side: _Side) -> list[Value]:
        """Return where the parts of the side after one are."""
        f, rows = self.f, self.spec.rows
        deeper = replace(side, start=f.add(side.start, rows.run))
        is_deeper = f.compare("slt", deeper.start, f.index(rows.depth))
        pairs = zip(self._places(deeper), self._places(self._following(side)), strict=True)
        return [f.select(is_deeper, one, other) for one, other in pairs]

    def _places(self, side: _Side) -> tuple[Value, Value]:
        """Return where the parts of a sum of weights are; the first twice where there is one."""
        f, w = self.f, self.spec.weights
        _, terms = PRODUCTS[side.number]
        places = []
        for quarter, _ in (terms[0], terms[-1]):
            number = self._numbers(side.pair)[quarter % 2]
            start = f.add(side.start, quarter // 2 * self.spec.rows.depth)
            depth = f.multiply(f.divide(start, w.block), w.block_bytes)
            places.append(f.at(self.weights, f.add(f.multiply(number, w.panel_bytes), depth)))
        return places[0], places[1]

    def _join(self, pair: Value) -> None:
        """Write the results of a pair from its products."""
        f, s = self.f, self.spec
        bias = []
        if self.bias:
            bias = [f.at(self.bias[0], f.multiply(one, PANEL * 4)) for one in self._numbers(pair)]
        factors = f.at(self.sums, s.rows.factors_at)
        arguments = [self.products, factors, *self._outs(pair), *bias, self.half]
        f.call_void(_joining(s, f.module, f.name), arguments)

    def _outs(self, pair: Value) -> list[Value]:
        """Return where a pair's results begin in a row."""
        f, s = self.f, self.spec
        columns = [pair] if s.gate else [f.multiply(pair, 2), f.add(f.multiply(pair, 2), 1)]
        return [f.at(self.out, f.multiply(one, PANEL * s.out_item_bytes)) for one in columns]

    def _numbers(self, pair: Value) -> tuple[Value, Value]:
        """Return the numbers of a pair's panels: a gate is joined with what it gates."""
        f = self.f
        if self.spec.gate:
            return pair, f.add(pair, self.spec.weights.panels // 2)
        return f.multiply(pair, 2), f.add(f.multiply(pair, 2), 1)


def _joining(spec: SevenProductsSpec, module: Module, base: str) -> str:
    """Write the function that makes results of products.

    Its arguments: products, factors of rows, where results go, biases, and the rows of a half.
    """
    name = f"{base}_join"
    if module.has(name):
        return name
    labels = ["products", "factors", "out0", *["out1"] * (spec.gate is None)]
    labels += ["bias0", "bias1"] * spec.has_bias
    f = Function(module, name, [*((label, "ptr") for label in labels), ("half", "i64")])
    join = _Join(spec, f)
    with f.loop(0, f.arguments[-1]) as row:
        join.write(row)
    f.finish()
    return name


class _Join:
    def __init__(self, spec: SevenProductsSpec, f: Function) -> None:
        self.spec = spec
        self.f = f
        self.arithmetic = Arithmetic(f, LANES)
        self.products, self.factors, *pointers, self.half = f.arguments
        count = 1 if spec.gate else 2
        self.outs, self.biases = pointers[:count], pointers[count:]

    def write(self, row: Value) -> None:
        """Write the results of a row of each half."""
        f, s, m = self.f, self.spec, self.arithmetic.math
        products = f.at(self.products, f.multiply(row, PANEL * 4))
        rows = [f.multiply(one, s.out_row_bytes) for one in (row, f.add(row, self.half))]
        self._ask(products, rows)
        factors = [
            self.arithmetic.load_splat("f32", f.at(self.factors, f.add(f.multiply(row, 4), half)))
            for half in (0, s.rows.half_factors_bytes)
        ]
        for v in range(VECTORS):
            parts = [
                self.arithmetic.load(
                    "f32", f.at(products, number * s.product_bytes + v * LANES * 4)
                )
                for number in range(len(PRODUCTS))
            ]
            quarters = [signed_sum(m, parts, terms) for terms in RESULTS]
            for half, (place, factor) in enumerate(zip(rows, factors, strict=True)):
                values = [m.multiply(one, factor) for one in quarters[2 * half :][:2]]
                self._write(values, place, v)

    def _write(self, values: list[Value], place: Value, v: int) -> None:
        """Write one vector of columns of both panels, in a row at some bytes from the first."""
        f, s, m = self.f, self.spec, self.arithmetic.math
        at = f.add(place, v * LANES * s.out_item_bytes)
        for number, bias in enumerate(self.biases):
            shift = self.arithmetic.load("f32", f.at(bias, v * LANES * 4))
            values[number] = m.add(values[number], shift)
        if s.gate is None:
            for value, out in zip(values, self.outs, strict=True):
                self.arithmetic.store("f32", value, f.at(out, at))
            return
        form = s.gate.form
        joined = source_value(m, s.gate.source, values, is_coarse=form.kind != "f32")
        write_vector(f, self.arithmetic, form, joined, f.at(self.outs[0], at))

    def _ask(self, products: Value, rows: list[Value]) -> None:
        """Ask for what rows ahead are read from and written to."""
        f, s = self.f, self.spec
        for number in range(len(PRODUCTS)):
            for line in range(0, PANEL * 4, 64):
                place = number * s.product_bytes + _AHEAD_ROWS * PANEL * 4 + line
                prefetch_line(f, f.at(products, place), level=1)
        for out in self.outs:
            for row in rows:
                ahead = f.at(out, f.add(row, _AHEAD_ROWS * s.out_row_bytes))
                for line in range(0, PANEL * s.out_item_bytes, 64):
                    prefetch_line(f, f.at(ahead, line), level=1, is_written=True)
