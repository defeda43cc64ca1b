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
from vermilion.codegen.emit.register_tile import RegisterTile, Side, prefetch_line
from vermilion.codegen.emit.values import Index, Value
from vermilion.codegen.emit.walk import Access, begin_kernel, has_sizes, patches, positions
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.codegen.tensor import STORAGE_BYTES
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known

# Lanes of a last vector that has as many as the run says.
_TAIL_OF_RUN = -1


@dataclass(frozen=True)
class Panels:
    """The right side, packed: blocks of columns, each [group][vector][lane][of group].

    `outer` strides count whole matrices.
    """

    outer: tuple[int, ...]


@dataclass(frozen=True)
class MatmulSpec:
    """`output[b, i, j] = expression(Σ left[b, i, k] · right[b, k, j], operands…)`.

    `outer` are the sizes of the batch's dimensions, by which all are walked before row and column.
    The expression's operand 0 is the sum.
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

    family = "matmul"

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
        f, pointers, (begin, end) = begin_kernel(module, name, 3 + len(self.operands))
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
        return self.isa.vector_bytes

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
        for pointer, access in zip(pointers[2:], (s.output, *s.operands), strict=True):
            others.append(access.at(f, pointer, (*where, 0, column)))
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
        """Write the rows of one vector of columns, whose number only a run has."""
        assert self.spec.tile_vectors == 1, "a last block of fewer vectors is not written"
        is_full = f.compare("slt", block, f.index(self.spec.columns // self.spec.lanes))
        with f.when(is_full):
            self._rows(f, (1, 0), span, pointers)
        with f.when(is_full, holds=False):
            self._rows(f, (1, _TAIL_OF_RUN), span, pointers)

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

        def call(rows: int, row: Value) -> None:
            none = (0,) * len(s.outer)
            accesses = (s.left, None, s.output, *s.operands)
            moved = [
                pointer if access is None else access.at(f, pointer, (*none, row))
                for pointer, access in zip(pointers, accesses, strict=True)
            ]
            ahead = self._ahead(f, shape, row, pointers)
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
        self, f: Function, shape: tuple[int, int], row: Value, pointers: Sequence[Value]
    ) -> list[Value]:
        """Return where a patch asks for the next block's panel, a share of it each patch."""
        s = self.spec
        if not s.prefetch:
            return []
        patch = f.divide(row, s.tile_rows)
        share = s.steps * self._ahead_step
        return [f.at(pointers[1], f.add(f.multiply(patch, share), self._block_bytes))]

    @property
    def _ahead_step(self) -> int:
        """Bytes of the next panel that a step asks for, so that a segment asks for all of it."""
        s = self.spec
        rows = min(s.rows, s.segment_rows) if is_known(s.rows) else s.segment_rows
        patches = max(1, rows // s.tile_rows)
        return -(-s.tile_vectors * self._vector_bytes // patches)

    def _tile(self, rows: int, vectors: int, tail: int) -> str:
        name = f"{self.name}_{rows}x{vectors}_{tail}"
        if self.module.has(name):
            return name
        s = self.spec
        labels = ["left", "right", "output", *(f"operand{i}" for i in range(len(s.operands)))]
        labels += ["ahead"] if s.prefetch else []
        labels += ["sizes"] if self.is_open else []
        f = Function(self.module, name, [(label, "ptr") for label in labels])
        if self.is_open:
            f.take_sizes(f.arguments[-1], 8 * (3 + len(s.operands)))
        ahead_at = f.arguments[3 + len(s.operands)] if s.prefetch else None
        arithmetic = Arithmetic(f, self.isa.lanes)
        count: Index = s.columns % s.lanes if tail == _TAIL_OF_RUN else tail
        mask = arithmetic.tail_mask(count) if tail else None
        tile = RegisterTile(f, self.isa, s.numeric, rows, vectors)
        size = STORAGE_BYTES[s.left.storage]
        left = Side(f.arguments[0], s.left.strides[-2] * size)
        if isinstance(s.right, Panels):
            right, right_mask = Side(f.arguments[1], vectors * self._vector_bytes), None
        else:
            right, right_mask = Side(f.arguments[1], s.right.strides[-2] * 4), mask

        def ask(step: Value) -> None:
            assert ahead_at is not None
            prefetch_line(f, f.at(ahead_at, f.multiply(step, self._ahead_step)))

        ahead = ask if s.prefetch else None
        tile.multiply(left, right, s.depth, mask=right_mask, prefetch=ahead)
        pointers = f.arguments[2 : 3 + len(s.operands)]
        epilogue = Epilogue(arithmetic, (s.expression,), (s.output,), s.operands, pointers)
        epilogue.write_rows(tile, mask)
        f.finish()
        return name
