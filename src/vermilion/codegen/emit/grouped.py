"""Convolutions in groups of a few channels: one vector holds the outputs of several groups.

Each lane needs the channels of its own group. A vector of input is loaded, and for each 32-bit word
of a group (one float, a pair or a quad) permuted so that every lane has that word of its group. A
permuted vector serves all pixels of the patch that read it, at each tap of a row.

    for each row of taps, each word of a group:
        words[x] = permute(input[x], lane's group + word)       for every column that is read
        accumulators[pixel] += words[pixel + tap] × weights[tap]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.depthwise import channel_parts
from vermilion.codegen.emit.epilogue import Epilogue, reads_sums_as_integers
from vermilion.codegen.emit.register_tile import RegisterTile
from vermilion.codegen.emit.values import Value, splat_integer
from vermilion.codegen.emit.walk import Access, begin_kernel, has_sizes, patches
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known

# Taps of a row that are written out; longer rows are a loop over parts of them.
_MOST_TAPS = 7
# Pixels side by side: as many sums, and as many permuted vectors, as leave some registers.
_PIXELS = {32: 12, 16: 5}


@dataclass(frozen=True)
class GroupedSpec:
    """`out[pixel][c] = expression(Σ over taps and i of in[pixel, tap][group(c), i] × weight)`.

    Strides count elements; the border is in the input's buffer. A group has `inputs` channels and
    `outputs` results; `words` 32-bit words hold its input wherever they begin, and the groups of
    one vector lie within `span` words. Weights are [vector][tap_y][part of a row][word][tap]; the
    third argument has for each vector the first word of each lane.
    """

    numeric: NumericName
    images: int
    rows: int
    columns: int
    channels: int
    inputs: int
    outputs: int
    words: int
    span: int
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
    # Whether accumulators start from the first operand, an int32 for each channel, not from 0.
    has_initial: bool = False

    family = "grouped"

    @property
    def part(self) -> int:
        """Taps of a row that are written out: all, or a divisor of them."""
        most = range(min(self.taps_x, _MOST_TAPS), 0, -1)
        return next(count for count in most if self.taps_x % count == 0)

    @property
    def channel_parts(self) -> int:
        """Parts of the channels that are units of their own, where there are few rows."""
        return channel_parts(self.images * self.rows, self.channels)

    @property
    def units(self) -> int:
        """One unit a row and part of the channels."""
        return self.images * self.rows * self.channel_parts

    def pixels(self, isa: Isa) -> int:
        """Pixels computed side by side: patches of one size, as far as the row lets them."""
        most = _PIXELS[isa.registers]
        if not is_known(self.columns):
            return most
        return -(-self.columns // -(-self.columns // most))

    def vector_bytes(self, isa: Isa) -> int:
        """Bytes of the weights of one vector of channels."""
        parts = NUMERICS[self.numeric].parts
        return self.taps_y * self.taps_x * self.words * parts * isa.vector_bytes

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and its tiles."""
        writer = _Writer(self, module, name, isa)
        f, pointers, units = begin_kernel(module, name, 4 + len(self.operands))
        vectors, tail = -(-self.channels // isa.lanes), self.channels % isa.lanes
        with f.loop(*units) as unit:
            part, rest = f.remainder(unit, self.channel_parts), f.divide(unit, self.channel_parts)
            image, row = f.divide(rest, self.rows), f.remainder(rest, self.rows)
            first = f.divide(f.multiply(part, vectors), self.channel_parts)
            last = f.divide(f.multiply(f.add(part, 1), vectors), self.channel_parts)
            whole = f.minimum(last, f.index(vectors - 1)) if tail else last
            with f.loop(first, whole) as vector:
                writer.row(f, (image, row, vector), pointers, 0)
            if tail:
                with f.when(f.compare("eq", f.index(last), f.index(vectors))):
                    writer.row(f, (image, row, f.index(vectors - 1)), pointers, tail)
        f.finish()


class _Writer:
    """Writes the tile functions of one convolution, each shape once."""

    def __init__(self, spec: GroupedSpec, module: Module, name: str, isa: Isa) -> None:
        self.spec = spec
        self.module = module
        self.name = name
        self.isa = isa
        self.numeric = NUMERICS[spec.numeric]
        self.is_open = has_sizes(spec)

    def row(
        self, f: Function, where: tuple[Value, Value, Value], pointers: Sequence[Value], tail: int
    ) -> None:
        """Write one row of one vector of channels, patch by patch."""
        s, isa = self.spec, self.isa
        image, row, vector = where
        size = self.numeric.activation_bytes
        channel = f.multiply(vector, isa.lanes)
        first = f.multiply(f.divide(channel, s.outputs), s.inputs)
        word = f.divide(first, self.numeric.group)
        weights = f.at(pointers[1], f.multiply(vector, s.vector_bytes(isa)))
        lanes = f.at(pointers[2], f.multiply(vector, isa.vector_bytes))

        def call(columns: int, column: Value) -> None:
            offset = f.multiply(image, s.in_image * size)
            offset = f.add(offset, f.multiply(row, s.in_row * size))
            offset = f.add(offset, f.multiply(column, s.in_column * size))
            source = f.at(pointers[0], f.add(offset, f.multiply(word, 4)))
            targets = [
                access.at(f, pointer, (image, row, column, channel))
                for pointer, access in zip(pointers[3:], (s.output, *s.operands), strict=True)
            ]
            sizes = [f.arguments[0]] if self.is_open else []
            f.call_void(self._tile(columns, tail), [source, weights, lanes, *targets, *sizes])

        width = s.pixels(isa)
        if not is_known(s.columns):
            patches(f, 0, s.columns, width, call)
            return
        rest = s.columns % width
        with f.loop(0, s.columns - rest, width) as column:
            call(width, column)
        if rest:
            call(rest, f.index(s.columns - rest))

    def _tile(self, columns: int, tail: int) -> str:
        name = f"{self.name}_{columns}_{tail}"
        if self.module.has(name):
            return name
        s = self.spec
        labels = ["source", "weights", "lanes", "output"]
        labels += [f"operand{i}" for i in range(len(s.operands))]
        labels += ["sizes"] if self.is_open else []
        f = Function(self.module, name, [(label, "ptr") for label in labels])
        if self.is_open:
            f.take_sizes(f.arguments[-1], 8 * (4 + len(s.operands)))
        tile = RegisterTile(f, self.isa, s.numeric, columns, 1)
        if s.has_initial:
            tile.start([f.load(tile.sum_type, f.arguments[4], align=4)])
        self._multiply(f, tile)
        arithmetic = Arithmetic(f, self.isa.lanes)
        mask = arithmetic.tail_mask(tail) if tail else None
        pointers = f.arguments[3 : 4 + len(s.operands)]
        epilogue = Epilogue(arithmetic, (s.expression,), (s.output,), s.operands, pointers)
        to_float = self.numeric.accumulator == "i32" and not reads_sums_as_integers(s.expression)
        for pixel, (slot,) in enumerate(tile.accumulators):
            total = slot.get()
            if to_float:
                total = f.convert("sitofp", total, arithmetic.type("float"))
            epilogue.finish((0, 0, pixel, 0), [total], mask)
        f.finish()
        return name

    def _multiply(self, f: Function, tile: RegisterTile) -> None:
        s, size = self.spec, self.numeric.activation_bytes
        lane_type = f"<{self.isa.lanes} x i32>"
        first = f.load(lane_type, f.arguments[2], align=4)
        one = splat_integer(1, self.isa.lanes)
        weights = f.slot(f.arguments[1])
        with f.loop(0, s.taps_y) as tap_y:
            line = f.at(f.arguments[0], f.multiply(tap_y, s.in_tap_y * size))
            with f.loop(0, s.taps_x // s.part) as part:
                run = f.at(line, f.multiply(part, s.part * s.in_tap_x * size))
                lanes = f.slot(first)
                with f.loop(0, s.words):
                    self._word(f, tile, (run, weights.get(), lanes.get()))
                    lanes.set(f.binary("add", lanes.get(), one))
                    weights.set(f.at(weights.get(), s.part * tile.step_bytes))

    def _word(self, f: Function, tile: RegisterTile, at: tuple[Value, Value, Value]) -> None:
        """Add the products of one word of every group, at each tap that is written out."""
        s, size = self.spec, self.numeric.activation_bytes
        run, weights, lanes = at
        words: dict[str, list[Value]] = {}
        for tap in range(s.part):
            vectors = tile.load_vectors(f.at(weights, tap * tile.step_bytes))
            for pixel, (slot,) in enumerate(tile.accumulators):
                offset = (tap * s.in_tap_x + pixel * s.in_column) * size
                if str(offset) not in words:
                    loaded = self._permuted(f, f.at(run, offset), lanes)
                    words[str(offset)] = tile.parts_of(loaded)
                for word, vector in zip(words[str(offset)], vectors, strict=True):
                    slot.set(tile.multiply_add(slot.get(), word, vector))

    def _permuted(self, f: Function, place: Value, lanes: Value) -> Value:
        """Load the words of a vector's groups; give each lane its own."""
        count, span = self.isa.lanes, self.spec.span
        loaded = f.load(f"<{span} x i32>", place, align=1)
        if span < count:
            order = ", ".join(f"i32 {n if n < span else 'poison'}" for n in range(count))
            loaded = f.emit(
                lanes.type,
                f"shufflevector {loaded}, {loaded.type} poison, <{count} x i32> <{order}>",
            )
        name = "llvm.x86.avx2.permd" if count == 8 else "llvm.x86.avx512.permvar.si.512"
        return f.intrinsic(name, lanes.type, [loaded, lanes])
