"""Attention: softmax(expression(query · keyᵀ)) · value, a block of rows at a time.

The scores of a block of rows and a block of keys are all that exists of the score matrix; sums of
earlier blocks of keys are scaled to the highest score seen (the "online" softmax).

    for each matrix and block of rows:
        for each block of keys:
            scores = expression(query × keys)
            top = max(top, scores), weights = e^(scores - top), sum = sum · factor + Σ weights
            context = context · factor + weights × values
        output = expression(context ÷ sum)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.epilogue import Epilogue
from vermilion.codegen.emit.matmul import Panels
from vermilion.codegen.emit.register_tile import RegisterTile, Side
from vermilion.codegen.emit.rows import for_vectors
from vermilion.codegen.emit.softmax import write_weights
from vermilion.codegen.emit.values import Index, Value, float_constant
from vermilion.codegen.emit.walk import Access, along, begin_kernel, has_sizes, patches, positions
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS, NumericName
from vermilion.codegen.tensor import STORAGE_BYTES
from vermilion.codegen.tile import Patch
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known


@dataclass(frozen=True)
class AttentionSpec:
    """Sizes and walks of one attention; `outer` are the sizes of the batch's dimensions.

    `score_expression` makes of operand 0, a score, what the softmax takes; its other operands are
    `score_operands`. `expression` does the same for the result.
    """

    numeric: NumericName
    lanes: int
    outer: tuple[int, ...]
    rows: int
    keys: int
    depth: int
    width: int
    query: Access
    key: Panels
    value: Access | Panels
    output: Access
    score_operands: tuple[Access, ...]
    operands: tuple[Access, ...]
    score_expression: Expression
    expression: Expression
    score_tile: Patch
    context_tile: Patch
    block_rows: int
    block_keys: int
    # What is computed of a weight, operand 0, before it is multiplied, where `is_whole`.
    weight_expression: Expression | None = None

    family = "attention"

    @property
    def row_blocks(self) -> int:
        """Blocks of rows."""
        return -(-self.rows // self.block_rows)

    @property
    def units(self) -> int:
        """One unit a matrix and block of rows."""
        return math.prod(self.outer) * self.row_blocks

    @property
    def is_whole(self) -> bool:
        """Whether all keys are one block, whatever is run."""
        return is_known(self.keys) and self.keys <= self.block_keys

    @property
    def score_row(self) -> int:
        """Elements from one row of scores to the next."""
        block = min(self.keys, self.block_keys) if is_known(self.keys) else self.block_keys
        return (-(-block // self.lanes) + 1) * self.lanes

    @property
    def context_row(self) -> int:
        """Elements from one row of the context to the next."""
        return -(-self.width // self.lanes) * self.lanes

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and the tile functions that it calls."""
        assert isa.lanes == self.lanes
        there = 4 + len(self.score_operands) + len(self.operands)
        f, pointers, (begin, end) = begin_kernel(module, name, there)
        writer = _Writer(self, module, name, isa, f)
        with f.loop(begin, end) as unit:
            writer.unit(unit, pointers)
        f.finish()


@dataclass(frozen=True)
class _Pointers:
    """The tensors, moved to a block of rows."""

    query: Value
    key: Value
    value: Value
    output: Value
    score_operands: tuple[Value, ...]
    operands: tuple[Value, ...]


class _Writer:
    """Writes one attention into `f`, and its tiles as functions of their own."""

    def __init__(
        self, spec: AttentionSpec, module: Module, name: str, isa: Isa, f: Function
    ) -> None:
        self.spec = spec
        self.module = module
        self.name = name
        self.isa = isa
        self.f = f
        self.group = NUMERICS[spec.numeric].group
        self.none = (0,) * len(spec.outer)
        self.is_open = has_sizes(spec)
        self._sizes_at = 8 * (4 + len(spec.score_operands) + len(spec.operands))
        self.scores = f.scratch(spec.block_rows * spec.score_row * 4)
        self.context = f.scratch(spec.block_rows * spec.context_row * 4)
        # Of each row: the highest score so far, the sum, the factor for what was summed before.
        self.state = f.scratch(spec.block_rows * 3 * 4)

    # Blocks -----------------------------------------------------------------------------------

    def unit(self, unit: Value, pointers: Sequence[Value]) -> None:
        """Write one block of rows; the last may be shorter."""
        s, f = self.spec, self.f
        *where, block = positions(f, unit, (*s.outer, s.row_blocks))
        row = f.multiply(block, s.block_rows)
        moved = self._moved(pointers, where, row)
        if not is_known(s.rows):
            return self._rows(moved, f.minimum(s.block_rows, f.subtract(s.rows, row)))
        rest = s.rows % s.block_rows
        if not rest or s.row_blocks == 1:
            return self._rows(moved, rest or s.block_rows)
        is_last = f.compare("eq", f.index(block), f.index(s.row_blocks - 1))
        with f.when(is_last):
            self._rows(moved, rest)
        with f.when(is_last, holds=False):
            self._rows(moved, s.block_rows)

    def _moved(self, pointers: Sequence[Value], where: Sequence[Index], row: Value) -> _Pointers:
        s, f = self.spec, self.f
        query, key, value, output, *others = pointers
        key_bytes = self._steps(s.depth) * -(-s.keys // s.lanes) * self.isa.vector_bytes
        value_bytes = self._steps(s.keys) * -(-s.width // s.lanes) * self.isa.vector_bytes
        accesses = (*s.score_operands, *s.operands)
        rows = tuple(
            access.at(f, pointer, (*where, row))
            for access, pointer in zip(accesses, others, strict=True)
        )
        split = len(s.score_operands)
        return _Pointers(
            s.query.at(f, query, (*where, row)),
            self._matrix(key, s.key, where, key_bytes),
            self._matrix(value, s.value, where, value_bytes),
            s.output.at(f, output, (*where, row)),
            rows[:split],
            rows[split:],
        )

    def _matrix(
        self, base: Value, side: Access | Panels, where: Sequence[Index], matrix_bytes: int
    ) -> Value:
        if isinstance(side, Access):
            return side.at(self.f, base, where)
        offset: Index = 0
        for index, stride in zip(where, side.outer, strict=True):
            if not is_known(stride) or stride:
                offset = self.f.add(offset, self.f.multiply(index, stride * matrix_bytes))
        return self.f.at(base, offset)

    def _steps(self, depth: int) -> int:
        return -(-depth // self.group)

    def _rows(self, pointers: _Pointers, rows: Index) -> None:
        s, f = self.spec, self.f
        with f.loop(0, rows) as row:
            place = f.at(self.state, f.multiply(row, 12))
            f.store(Value("float", "0xFFF0000000000000"), place, align=4)
            f.store(float_constant(0.0), place, 4, align=4)
        if not s.is_whole:
            zeros = f.multiply(rows, s.context_row * 4)
            fill = self.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
            f.call_void(fill, [self.context, Value("i8", "0"), zeros, Value("i1", "false")])
        if not is_known(s.keys):
            with f.loop(0, s.keys, s.block_keys) as first:
                count = f.minimum(s.block_keys, f.subtract(s.keys, first))
                self._block(pointers, rows, count, first)
            self._finish(pointers, rows)
            return
        rest = s.keys % s.block_keys
        if s.keys >= s.block_keys:
            with f.loop(0, s.keys - rest, s.block_keys) as first:
                self._block(pointers, rows, s.block_keys, first)
        if rest:
            self._block(pointers, rows, rest, f.index(s.keys - rest))
        self._finish(pointers, rows)

    def _block(self, pointers: _Pointers, rows: Index, keys: Index, first: Value) -> None:
        """Write scores, weights and context of one block of keys."""
        f, s = self.f, self.spec
        self._scores(pointers, rows, keys, first)
        known, count = (keys, []) if isinstance(keys, int) else (None, [keys])
        weigh = f"{self.name}_weights_{known}"
        write_weights(
            self.module, weigh, s.lanes, known, "bf16" if s.numeric == "bf16" else "f32",
            is_whole=s.is_whole, expression=s.weight_expression,
        )  # fmt: skip
        with f.loop(0, rows) as row:
            scores = f.at(self.scores, f.multiply(row, s.score_row * 4))
            f.call_void(weigh, [scores, f.at(self.state, f.multiply(row, 12)), *count])
        self._contexts(pointers, rows, keys, first)

    # Scores -----------------------------------------------------------------------------------

    def _scores(self, pointers: _Pointers, rows: Index, keys: Index, first: Value) -> None:
        s, f = self.spec, self.f
        panel_bytes = self._steps(s.depth) * self.isa.vector_bytes
        starts = self._key_panel(pointers.key, first, panel_bytes)

        def blocks(patch: int, row: Value) -> None:
            def call(vectors: int, tail: Index, vector: Value) -> None:
                column = f.multiply(vector, s.lanes)
                at: tuple[Index, ...] = (*self.none, row, f.add(first, column))
                operands = [
                    access.at(f, pointer, at)
                    for access, pointer in zip(
                        s.score_operands, pointers.score_operands, strict=True
                    )
                ]
                query = s.query.at(f, pointers.query, (*self.none, row))
                target = f.at(self.scores, f.multiply(row, s.score_row * 4))
                f.call_void(
                    self._score_tile(patch, vectors, tail if isinstance(tail, int) else None),
                    [
                        query, f.at(starts, f.multiply(vector, panel_bytes)),
                        f.at(target, f.multiply(column, 4)), *operands,
                        *([] if isinstance(tail, int) else [tail]), *self._sizes(),
                    ],
                )  # fmt: skip

            along(f, s.lanes, keys, s.score_tile.vectors, call)

        patches(f, 0, rows, s.score_tile.rows, blocks)

    def _sizes(self) -> list[Value]:
        """Return what the functions of tiles get beside their pointers: where sizes lie."""
        return [self.f.arguments[0]] if self.is_open else []

    def _take_sizes(self, f: Function) -> None:
        if self.is_open:
            f.take_sizes(f.arguments[-1], self._sizes_at)

    def _key_panel(self, base: Value, first: Value, panel_bytes: int) -> Value:
        """Return the panel of the block's first key: blocks begin where panels do."""
        vectors = self.f.divide(first, self.spec.lanes)
        return self.f.at(base, self.f.multiply(vectors, panel_bytes))

    def _score_tile(self, rows: int, vectors: int, tail: int | None) -> str:
        """Write a tile of scores; without `tail`, how many columns are there is an argument."""
        name = f"{self.name}_scores_{rows}x{vectors}_{tail}"
        if self.module.has(name):
            return name
        s = self.spec
        labels = ["query", "key", "scores", *(f"operand{i}" for i in range(len(s.score_operands)))]
        last = [("left", "i64")] if tail is None else []
        last += [("sizes", "ptr")] if self.is_open else []
        f = Function(self.module, name, [*((label, "ptr") for label in labels), *last])
        self._take_sizes(f)
        arithmetic = Arithmetic(f, s.lanes)
        tile = RegisterTile(f, self.isa, s.numeric, rows, vectors)
        query = Side(f.arguments[0], s.query.strides[-2] * STORAGE_BYTES[s.query.storage])
        key = Side(f.arguments[1], vectors * self.isa.vector_bytes)
        if not is_known(s.keys):  # each vector of keys is a panel of its own
            panel_bytes = self._steps(s.depth) * self.isa.vector_bytes
            places = tuple(n * panel_bytes for n in range(vectors))
            key = Side(f.arguments[1], self.isa.vector_bytes, offsets=places)
        tile.multiply(query, key, s.depth)
        mask = f.arguments[len(labels)] if tail is None else tail
        scores = Access("f32", (*self.none, s.score_row, 1))
        epilogue = Epilogue(
            arithmetic, (s.score_expression,), (scores,), s.score_operands,
            f.arguments[2 : len(labels)],
        )  # fmt: skip
        epilogue.write_rows(tile, None if tail == 0 else arithmetic.tail_mask(mask))
        f.finish()
        return name

    # Context ----------------------------------------------------------------------------------

    def _contexts(self, pointers: _Pointers, rows: Index, keys: Index, first: Value) -> None:
        s, f = self.spec, self.f
        known, count = (keys, []) if isinstance(keys, int) else (None, [keys])
        side = s.value
        column_bytes = 4 if isinstance(side, Access) else self._steps(s.keys) * 4

        def blocks(patch: int, row: Value) -> None:
            def call(vectors: int, tail: Index, vector: Value) -> None:
                assert isinstance(tail, int), "the width is known"
                start = f.at(pointers.value, f.multiply(vector, s.lanes * column_bytes))
                if isinstance(side, Access):
                    start = f.at(start, f.multiply(first, side.strides[-2] * 4))
                else:
                    steps = f.divide(first, self.group)
                    start = f.at(start, f.multiply(steps, vectors * self.isa.vector_bytes))
                target = f.at(self.context, f.multiply(row, s.context_row * 4))
                f.call_void(
                    self._context_tile(patch, vectors, tail, known),
                    [
                        f.at(self.scores, f.multiply(row, s.score_row * 4)), start,
                        f.at(target, f.multiply(vector, self.isa.vector_bytes)),
                        f.at(self.state, f.multiply(row, 12)), *count, *self._sizes(),
                    ],
                )  # fmt: skip

            along(f, s.lanes, s.width, s.context_tile.vectors, call)

        patches(f, 0, rows, s.context_tile.rows, blocks)

    def _context_tile(self, rows: int, vectors: int, tail: int, keys: int | None) -> str:
        """Write a tile of the context; without `keys`, how many there are is an argument."""
        name = f"{self.name}_context_{rows}x{vectors}_{tail}_{keys}"
        if self.module.has(name):
            return name
        s = self.spec
        labels = ("weights", "value", "context", "state")
        more = [] if keys is not None else [("keys", "i64")]
        more += [("sizes", "ptr")] if self.is_open else []
        f = Function(self.module, name, [*((label, "ptr") for label in labels), *more])
        self._take_sizes(f)
        weights, value, context, state = f.arguments[:4]
        arithmetic = Arithmetic(f, s.lanes)
        tile = RegisterTile(f, self.isa, s.numeric, rows, vectors)
        mask = None
        if isinstance(s.value, Access):
            right = Side(value, s.value.strides[-2] * 4)
            mask = arithmetic.tail_mask(tail) if tail else None
        else:
            right = Side(value, vectors * self.isa.vector_bytes)

        def place(y: int, n: int) -> Value:
            return f.at(context, (y * s.context_row + n * s.lanes) * 4)

        left = Side(weights, s.score_row * 4)
        if keys is not None:
            tile.multiply(left, right, keys, mask=mask)
        else:  # of an odd number the last pair has a weight of 0
            steps = f.divide(f.add(f.arguments[4], self.group - 1), self.group)
            tile.multiply_steps(left, right, steps, masks=[*[None] * (vectors - 1), mask])
        for y, slots in enumerate(tile.accumulators):
            factor = None if s.is_whole else arithmetic.load_splat("f32", f.at(state, y * 12 + 8))
            for n, slot in enumerate(slots):
                total = slot.get()
                if factor is not None:
                    before = arithmetic.load("f32", place(y, n))
                    total = arithmetic.math.fma(before, factor, total)
                arithmetic.store("f32", total, place(y, n))
        f.finish()
        return name

    def _finish(self, pointers: _Pointers, rows: Index) -> None:
        """Write the rows of the result."""
        s, f = self.spec, self.f
        arithmetic = Arithmetic(f, s.lanes)
        with f.loop(0, rows) as row:
            m = arithmetic.math
            total = arithmetic.load_splat("f32", f.at(self.state, f.add(f.multiply(row, 12), 4)))
            share = m.divide(m.number(1.0), total)
            context = f.at(self.context, f.multiply(row, s.context_row * 4))
            here: tuple[Index, ...] = (*self.none, row)
            accesses, pairs = (s.output, *s.operands), (pointers.output, *pointers.operands)
            bases = [one.at(f, base, here) for one, base in zip(accesses, pairs, strict=True)]

            def write(at: Value, mask: Value | None, number: int) -> None:
                sums = arithmetic.load("f32", f.at(context, f.multiply(at, 4)))
                Epilogue(arithmetic, (s.expression,), (s.output,), s.operands, bases).finish(
                    (*self.none, 0, at), [m.multiply(sums, share)], mask
                )

            for_vectors(f, arithmetic, s.width, write)
