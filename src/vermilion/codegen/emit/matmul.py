"""Matrix products, one or a batch: activations times packed panels, or times rows in place.

for each matrix, block of columns and segment of rows:
for each patch of rows:
accumulators += left[row][k] × right[k][column]
output = expression(accumulators, bias, residual, …)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.epilogue import Epilogue
from vermilion.codegen.emit.register_tile import Prefetch, RegisterTile, Side, prefetch_line
from vermilion.codegen.emit.values import Index, Value
from vermilion.codegen.emit.walk import Access, begin_kernel, has_sizes, patches, positions
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.codegen.tensor import STORAGE_BYTES
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known

# Lines that a step asks for where only a run has the rows: enough for two patches.
_LINE_BYTES, _OPEN_LINES = 64, 2
# Lanes of a last vector that has as many as the run says.
_TAIL_OF_RUN = -1


@dataclass(frozen=True)
class Panels:
    """The right side, packed: blocks of columns, each [group][vector][lane][of group].

    Of columns that only a run has, every block is one vector. `outer` strides count whole matrices.
    """

    outer: tuple[int, ...]


@dataclass(frozen=True)
class MatmulSpec:
    """`output[b, i, j] = expression(Σ left[b, i, k] · right[b, k, j], operands…)`.

    `outer` are the sizes of the batch's dimensions, by which all are walked before row and column.
    The expression's operand 0 is the sum. With a `second` left side, its product with a second
    right side, packed like the first, is part of the sum; both follow the operands.
    """

    numeric: NumericName
    lanes: int
    outer: tuple[int, ...]
    rows: int
    columns: int
    depth: int
    left: Access
    right: Access | Panels
    output: Access
    operands: tuple[Access, ...]
    expression: Expression
    tile_rows: int
    tile_vectors: int
    segment_rows: int
    prefetch: bool = False
    second: Access | None = None

    family = "matmul"

    @property
    def pointers(self) -> int:
        """Pointers to left and right, to the result and its operands, to the second two."""
        return 3 + len(self.operands) + (0 if self.second is None else 2)

    @property
    def steps(self) -> int:
        """Groups of the depth."""
        return -(-self.depth // NUMERICS[self.numeric].group)

    @property
    def vectors(self) -> int:
        """Vectors in a row of the result."""
        return -(-self.columns // self.lanes)

    @property
    def blocks(self) -> int:
        """Blocks of columns."""
        return -(-self.vectors // self.tile_vectors)

    @property
    def segments(self) -> int:
        """Segments of rows."""
        return -(-self.rows // self.segment_rows)

    @property
    def units(self) -> int:
        """One unit a matrix, segment of rows and block of columns."""
        return math.prod(self.outer) * self.blocks * self.segments

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and the tile functions that it calls."""
        assert isa.lanes == self.lanes
        writer = _Writer(self, module, name, isa)
        f, pointers, (begin, end) = begin_kernel(module, name, self.pointers)
        with f.loop(begin, end) as unit:
            writer.unit(f, unit, pointers)
        f.finish()


class _Writer:
    """Writes one product's loops and its tiles, each shape once."""

    def __init__(self, spec: MatmulSpec, module: Module, name: str, isa: Isa) -> None:
        self.spec = spec
        self.module = module
        self.name = name
        self.isa = isa
        self.is_open = has_sizes(spec)

    @property
    def _vector_bytes(self) -> int:
        """Bytes of the right side's values of one group, for one vector of columns."""
        return NUMERICS[self.spec.numeric].parts * self.isa.vector_bytes

    @property
    def _block_bytes(self) -> int:
        return self.spec.steps * self.spec.tile_vectors * self._vector_bytes

    def unit(self, f: Function, unit: Value, pointers: Sequence[Value]) -> None:
        """Write the decoding of a unit and the choice of its tile."""
        s = self.spec
        *where, segment, block = positions(f, unit, (*s.outer, s.segments, s.blocks))
        first = f.multiply(segment, s.segment_rows)
        last = f.minimum(f.add(first, s.segment_rows), s.rows)
        column = f.multiply(block, s.tile_vectors * s.lanes)
        left = s.left.at(f, pointers[0], where)
        right = self._right(f, pointers[1], where, f.index(block))
        others = []
        for pointer, access in zip(pointers[2:], (s.output, *s.operands), strict=False):
            others.append(access.at(f, pointer, (*where, 0, column)))
        if s.second is not None:
            others.append(s.second.at(f, pointers[-2], where))
            others.append(self._right(f, pointers[-1], where, f.index(block)))
        if not is_known(s.columns):
            self._open_columns(f, f.index(block), (first, last), [left, right, *others])
            return
        rest = s.vectors % s.tile_vectors
        tail = s.columns % s.lanes
        shapes = [(s.tile_vectors, 0 if rest else tail)]
        if s.blocks == 1:
            shapes = [(s.vectors, tail)]
        elif rest or tail:
            shapes = [(s.tile_vectors, 0), (rest or s.tile_vectors, tail)]
        if len(shapes) == 1:
            self._rows(f, shapes[0], (first, last), [left, right, *others])
            return
        is_last = f.compare("eq", f.index(block), f.index(s.blocks - 1))
        with f.when(is_last):
            self._rows(f, shapes[1], (first, last), [left, right, *others])
        with f.when(is_last, holds=False):
            self._rows(f, shapes[0], (first, last), [left, right, *others])

    def _open_columns(
        self, f: Function, block: Value, span: tuple[Value, Value], pointers: Sequence[Value]
    ) -> None:
        """Write the rows of a block of columns whose number only a run has.

        What is no full block is done vector by vector.
        """
        s = self.spec
        is_full = f.compare("slt", block, f.index(s.columns // (s.tile_vectors * s.lanes)))
        with f.when(is_full):
            self._rows(f, (s.tile_vectors, 0), span, pointers)
        with f.when(is_full, holds=False):
            left = f.subtract(f.index(s.columns // s.lanes), f.multiply(block, s.tile_vectors))
            with f.loop(0, left) as vector:
                self._rows(f, (1, 0), span, self._from_vector(f, pointers, vector))
            with f.when(f.compare("ne", f.index(s.columns % s.lanes), f.index(0))):
                self._rows(f, (1, _TAIL_OF_RUN), span, self._from_vector(f, pointers, left))

    def _from_vector(self, f: Function, pointers: Sequence[Value], vector: Value) -> list[Value]:
        """Return the pointers of a block moved to one of its vectors."""
        s = self.spec
        left, right, *others = pointers
        strip = s.steps if isinstance(s.right, Panels) else 1
        none = (0,) * (len(s.outer) + 1)
        columns = f.multiply(vector, s.lanes)
        return [
            left,
            f.at(right, f.multiply(vector, strip * self._vector_bytes)),
            *(
                access.at(f, pointer, (*none, columns))
                for pointer, access in zip(others, (s.output, *s.operands), strict=True)
            ),
        ]

    def _right(self, f: Function, base: Value, where: Sequence[Value | int], block: Value) -> Value:
        s = self.spec
        if isinstance(s.right, Panels):
            matrix_bytes = s.steps * s.vectors * self._vector_bytes
            offset = f.multiply(block, self._block_bytes)
            for index, stride in zip(where, s.right.outer, strict=True):
                if stride:
                    offset = f.add(offset, f.multiply(index, stride * matrix_bytes))
            return f.at(base, offset)
        start = s.right.at(f, base, where)
        return f.at(start, f.multiply(block, s.tile_vectors * self._vector_bytes))

    def _rows(
        self,
        f: Function,
        shape: tuple[int, int],
        span: tuple[Value, Value],
        pointers: Sequence[Value],
    ) -> None:
        """Write the loop over the patches of a segment, the last patch by itself."""
        s = self.spec
        first, last = span
        asked = self._asked_bytes(f, f.subtract(last, first)) if s.prefetch else 0

        def call(rows: int, row: Value) -> None:
            none = (0,) * len(s.outer)
            seconds = () if s.second is None else (s.second, None)
            accesses = (s.left, None, s.output, *s.operands, *seconds)
            moved = [
                pointer if access is None else access.at(f, pointer, (*none, row))
                for pointer, access in zip(pointers, accesses, strict=True)
            ]
            ahead = self._ahead(f, f.subtract(row, first), asked, pointers)
            sizes = [f.arguments[0]] if self.is_open else []
            f.call_void(self._tile(rows, *shape), [*moved, *ahead, *sizes])

        if not is_known(s.rows):
            patches(f, first, last, s.tile_rows, call)
            return
        rest = s.rows % s.tile_rows
        whole_end = f.minimum(last, s.rows - rest) if rest else last
        if s.rows >= s.tile_rows:
            with f.loop(first, whole_end, s.tile_rows) as row:
                call(s.tile_rows, row)
        if rest:
            with f.when(f.compare("eq", last, f.index(s.rows))):
                call(rest, f.index(s.rows - rest))

    def _ahead(
        self, f: Function, row: Value, asked: Index, pointers: Sequence[Value]
    ) -> list[Value]:
        """Return where a patch asks for the next block's panels, a share of them each patch.

        Behind them how many bytes it asks for in a step, where only a run has them.
        """
        s = self.spec
        if not s.prefetch:
            return []
        share = f.multiply(f.index(asked), s.steps)
        offset = f.add(f.multiply(f.divide(row, s.tile_rows), share), self._block_bytes)
        panels = [pointers[1]] if s.second is None else [pointers[1], pointers[-1]]
        places = [f.at(panel, offset) for panel in panels]
        return places if isinstance(asked, int) else [*places, asked]

    def _asked_bytes(self, f: Function, rows: Value) -> Index:
        """Return the bytes of the next panel that a step asks for: a segment asks for all of it."""
        s = self.spec
        if is_known(s.rows):
            return self._asked
        patches = f.divide(f.add(rows, s.tile_rows - 1), s.tile_rows)
        whole = s.tile_vectors * self._vector_bytes
        return f.binary("udiv", f.add(patches, whole - 1), patches)

    @property
    def _asked(self) -> int:
        """The same where the rows are known."""
        s = self.spec
        patches = max(1, min(s.rows, s.segment_rows) // s.tile_rows)
        return -(-s.tile_vectors * self._vector_bytes // patches)

    def _tile(self, rows: int, vectors: int, tail: int) -> str:
        name = f"{self.name}_{rows}x{vectors}_{tail}"
        if self.module.has(name):
            return name
        s = self.spec
        labels = ["left", "right", "output", *(f"operand{i}" for i in range(len(s.operands)))]
        labels += [] if s.second is None else ["second_left", "second_right"]
        seconds = 1 if s.second is None else 2
        labels += [f"ahead{number}" for number in range(seconds)] if s.prefetch else []
        parameters = [(label, "ptr") for label in labels]
        is_asked = s.prefetch and not is_known(s.rows)
        parameters += [("asked", "i64")] if is_asked else []
        parameters += [("sizes", "ptr")] if self.is_open else []
        f = Function(self.module, name, parameters)
        if self.is_open:
            f.take_sizes(f.arguments[-1], 8 * s.pointers)
        arithmetic = Arithmetic(f, self.isa.lanes)
        count: Index = s.columns % s.lanes if tail == _TAIL_OF_RUN else tail
        mask = arithmetic.tail_mask(count) if tail else None
        tile = RegisterTile(f, self.isa, s.numeric, rows, vectors)
        size = STORAGE_BYTES[s.left.storage]
        left = Side(f.arguments[0], s.left.strides[-2] * size)
        if isinstance(s.right, Panels):
            right, right_mask = self._panel(f.arguments[1], vectors), None
        else:
            right, right_mask = Side(f.arguments[1], s.right.strides[-2] * 4), mask

        def asking(number: int) -> Prefetch | None:
            if not s.prefetch:
                return None
            ahead = f.arguments[s.pointers + number]
            asked: Index = f.arguments[s.pointers + seconds] if is_asked else self._asked
            lines = _OPEN_LINES if is_asked else -(-self._asked // _LINE_BYTES)

            def ask(step: Value) -> None:
                place = f.at(ahead, f.multiply(step, asked))
                for line in range(lines):
                    prefetch_line(f, f.at(place, line * _LINE_BYTES))

            return ask

        tile.multiply(left, right, s.depth, mask=right_mask, prefetch=asking(0))
        if s.second is not None:
            lefts, panels = (f.arguments[s.pointers - n] for n in (2, 1))
            second = Side(lefts, s.second.strides[-2] * STORAGE_BYTES[s.second.storage])
            tile.multiply(second, self._panel(panels, vectors), s.depth, prefetch=asking(1))
        pointers = f.arguments[2 : 3 + len(s.operands)]
        epilogue = Epilogue(arithmetic, (s.expression,), (s.output,), s.operands, pointers)
        epilogue.write_rows(tile, mask)
        f.finish()
        return name

    def _panel(self, pointer: Value, vectors: int) -> Side:
        """Return a block of packed columns."""
        if is_known(self.spec.columns):
            return Side(pointer, vectors * self._vector_bytes)
        strip, parts = self.spec.steps * self._vector_bytes, NUMERICS[self.spec.numeric].parts
        offsets = [
            n * strip + part * self.isa.vector_bytes
            for n in range(vectors)
            for part in range(parts)
        ]
        return Side(pointer, self._vector_bytes, offsets=offsets)
