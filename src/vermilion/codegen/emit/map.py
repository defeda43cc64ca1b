"""Elementwise kernels: any number of expressions over one index space, as one loop nest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Index, Module, Value
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, View
from vermilion.ir.expression import Expression

# Elements in one unit of work where rows are long; shorter rows are taken several at a time.
_UNIT_ELEMENTS = 4096
# Elements of a densest dimension below which a longer one is vectorized.
_SHORT = 6


@dataclass(frozen=True)
class Access:
    """How one tensor is walked: its storage type and a stride for each dimension."""

    storage: Storage
    strides: tuple[int, ...]


@dataclass(frozen=True)
class MapSpec:
    """`outputs[i][x] = expressions[i](operands at x)` for every index x of `shape`.

    The last dimension is the vectorized one.
    """

    shape: tuple[int, ...]
    operands: tuple[Access, ...]
    outputs: tuple[Access, ...]
    expressions: tuple[Expression, ...]

    family = "map"

    @property
    def row(self) -> int:
        """Elements of a row."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Number of rows."""
        return math.prod(self.shape[:-1])

    @property
    def is_flat(self) -> bool:
        """Whether there is one row, which is then cut into pieces."""
        return len(self.shape) == 1

    @property
    def rows_in_unit(self) -> int:
        """Rows that one unit computes."""
        return max(1, _UNIT_ELEMENTS // max(1, self.row))

    @property
    def units(self) -> int:
        """Units of work."""
        if self.is_flat:
            return max(1, -(-self.row // _UNIT_ELEMENTS))
        return -(-self.rows // self.rows_in_unit)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        args, begin, end = f.arguments
        bases = [
            f.load("ptr", args, 8 * index, align=8)
            for index in range(len(self.operands) + len(self.outputs))
        ]
        if self.is_flat:
            with f.loop(begin, end) as unit:
                start = f.multiply(unit, _UNIT_ELEMENTS)
                count = f.minimum(f.subtract(self.row, start), _UNIT_ELEMENTS)
                self._row(f, isa, self._advance(f, bases, [start]), count)
        else:
            first = f.multiply(begin, self.rows_in_unit)
            last = f.minimum(f.multiply(end, self.rows_in_unit), self.rows)
            with f.loop(first, last) as row:
                position: list[Index] = []
                rest: Value = row
                for size in reversed(self.shape[:-1]):
                    position.insert(0, f.remainder(rest, size))
                    rest = f.divide(rest, size)
                self._row(f, isa, self._advance(f, bases, position), self.row)
        f.finish()

    def _advance(
        self, f: Function, bases: Sequence[Value], position: Sequence[Index]
    ) -> list[Value]:
        """Move every pointer to the row at `position`."""
        moved = []
        for base, access in zip(bases, (*self.operands, *self.outputs), strict=True):
            offset: Index = 0
            for index, stride in zip(position, access.strides, strict=False):
                step = f.multiply(index, stride * STORAGE_BYTES[access.storage])
                offset = f.add(offset, step)
            moved.append(f.at(base, offset))
        return moved

    def _row(self, f: Function, isa: Isa, pointers: Sequence[Value], count: Index) -> None:
        lanes = isa.lanes
        arithmetic = Arithmetic(f, lanes)
        whole = (
            count - count % lanes
            if isinstance(count, int)
            else f.multiply(f.divide(count, lanes), lanes)
        )
        with f.loop(0, whole, lanes) as i:
            self._vector(f, arithmetic, pointers, i, None)
        if isinstance(count, int):
            if count % lanes:
                mask = arithmetic.tail_mask(count % lanes)
                self._vector(f, arithmetic, pointers, f.index(whole), mask)
            return
        left = f.subtract(count, whole)
        with f.when(f.compare("sgt", left, f.index(0))):
            self._vector(f, arithmetic, pointers, f.index(whole), arithmetic.tail_mask(left))

    def _vector(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: Sequence[Value],
        i: Value,
        mask: Value | None,
    ) -> None:
        loaded: dict[int, Value] = {}

        def operand(index: int) -> Value:
            if index not in loaded:
                loaded[index] = self._load(f, arithmetic, pointers, index, i, mask)
            return loaded[index]

        results = [
            arithmetic.evaluate(e, operand, lambda index: pointers[index]) for e in self.expressions
        ]
        for number, (result, access) in enumerate(zip(results, self.outputs, strict=True)):
            stride = access.strides[-1]
            place = f.at(
                pointers[len(self.operands) + number],
                f.multiply(i, stride * STORAGE_BYTES[access.storage]),
            )
            if stride == 1:
                arithmetic.store(access.storage, result, place, mask=mask)
            else:
                every = mask if mask is not None else arithmetic.tail_mask(arithmetic.lanes)
                arithmetic.store_strided(access.storage, result, place, stride, mask=every)

    def _load(
        self,
        f: Function,
        arithmetic: Arithmetic,
        pointers: Sequence[Value],
        index: int,
        i: Value,
        mask: Value | None,
    ) -> Value:
        access = self.operands[index]
        stride = access.strides[-1]
        if stride == 0:
            return arithmetic.load_splat(access.storage, pointers[index])
        offset = f.multiply(i, stride * STORAGE_BYTES[access.storage])
        place = f.at(pointers[index], offset)
        if stride == 1:
            return arithmetic.load(access.storage, place, mask=mask)
        return arithmetic.load_strided(access.storage, place, stride, mask=mask)


def map_step(
    operands: Sequence[View],
    outputs: Sequence[View],
    expressions: Sequence[Expression],
    nodes: Sequence[str] = (),
    operations: int = 0,
) -> Step:
    """Return the step that computes `expressions`; operands broadcast to the outputs' shape."""
    shape = outputs[0].shape
    wide = [operand.broadcast(shape) for operand in operands]
    views = [*wide, *outputs]
    dims = collapse(shape, [view.strides for view in views], len(operands))
    strides = [tuple(d[1][k] for d in dims) for k in range(len(views))]
    spec = MapSpec(
        tuple(d[0] for d in dims),
        tuple(Access(v.storage, s) for v, s in zip(wide, strides, strict=False)),
        tuple(Access(v.storage, s) for v, s in zip(outputs, strides[len(operands) :], strict=True)),
        tuple(expressions),
    )
    return Step(spec, tuple(views), tuple(outputs), tuple(nodes), operations)


Dimension = tuple[int, tuple[int, ...]]


def collapse(
    shape: Sequence[int], strides: Sequence[tuple[int, ...]], first_output: int
) -> list[Dimension]:
    """Drop and merge dimensions that all tensors walk alike; the output's densest comes last."""
    dims = [(size, tuple(s[axis] for s in strides)) for axis, size in enumerate(shape) if size != 1]
    if not dims:
        return [(1, tuple(0 for _ in strides))]
    dims.sort(key=lambda d: -d[1][first_output])
    merged = [dims[0]]
    for size, inner in dims[1:]:
        outer_size, outer = merged[-1]
        if all(o == i * size for o, i in zip(outer, inner, strict=True)):
            merged[-1] = (outer_size * size, inner)
        else:
            merged.append((size, inner))
    return _longest_last(merged)


def _longest_last(dims: list[Dimension]) -> list[Dimension]:
    """Make a long dimension the vectorized one where the densest has only a few elements.

    Three colour planes that become three channels of a pixel: vectors along a row, stored with
    gaps, instead of 3 lanes of 16 at a time.
    """
    if dims[-1][0] >= _SHORT or len(dims) == 1:
        return dims
    longest = max(range(len(dims)), key=lambda at: dims[at][0])
    if dims[longest][0] < 4 * dims[-1][0]:
        return dims
    return [*dims[:longest], *dims[longest + 1 :], dims[longest]]
