"""Elementwise kernels: any number of expressions over one index space, as one loop nest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.epilogue import Epilogue
from vermilion.codegen.emit.rows import each_vector
from vermilion.codegen.emit.values import Index, Value
from vermilion.codegen.emit.walk import Access, begin_kernel, positions
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import View
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import larger, same, typical

# Elements in one unit of work where rows are long; shorter rows are taken several at a time.
_UNIT_ELEMENTS = 4096
# Elements of a densest dimension below which a longer one is vectorized.
_SHORT = 6


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
        return larger(1, _UNIT_ELEMENTS // larger(1, self.row))

    @property
    def units(self) -> int:
        """Units of work."""
        if self.is_flat:
            return larger(1, -(-self.row // _UNIT_ELEMENTS))
        return -(-self.rows // self.rows_in_unit)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        count = len(self.operands) + len(self.outputs)
        f, pointers, (begin, end) = begin_kernel(module, name, count)
        arithmetic = Arithmetic(f, isa.lanes)
        if self.is_flat:
            with f.loop(begin, end) as unit:
                start = f.multiply(unit, _UNIT_ELEMENTS)
                size = f.minimum(f.subtract(self.row, start), _UNIT_ELEMENTS)
                self._row(arithmetic, self._moved(f, pointers, [start]), size)
        else:
            first = f.multiply(begin, self.rows_in_unit)
            last = f.minimum(f.multiply(end, self.rows_in_unit), self.rows)
            with f.loop(first, last) as row:
                where = positions(f, row, self.shape[:-1])
                self._row(arithmetic, self._moved(f, pointers, where), self.row)
        f.finish()

    def _moved(self, f: Function, pointers: Sequence[Value], where: Sequence[Index]) -> list[Value]:
        accesses = (*self.operands, *self.outputs)
        return [one.at(f, base, where) for one, base in zip(accesses, pointers, strict=True)]

    def _row(self, arithmetic: Arithmetic, pointers: Sequence[Value], size: Index) -> None:
        count = len(self.operands)
        turned = [*pointers[count:], *pointers[:count]]
        for i, mask in each_vector(arithmetic, size):
            Epilogue(arithmetic, self.expressions, self.outputs, self.operands, turned).finish(
                (*(0,) * (len(self.shape) - 1), i), [], mask
            )


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
    dims.sort(key=lambda d: -typical(d[1][first_output]))
    merged = [dims[0]]
    for size, inner in dims[1:]:
        outer_size, outer = merged[-1]
        if all(same(o, i * size) for o, i in zip(outer, inner, strict=True)):
            merged[-1] = (outer_size * size, inner)
        else:
            merged.append((size, inner))
    return _longest_last(merged)


def _longest_last(dims: list[Dimension]) -> list[Dimension]:
    """Make a long dimension the vectorized one where the densest has only a few elements.

    Three colour planes that become three channels of a pixel: vectors along a row, stored with
    gaps, instead of 3 lanes of 16 at a time.
    """
    sizes = [typical(size) for size, _ in dims]
    if sizes[-1] >= _SHORT or len(dims) == 1:
        return dims
    longest = max(range(len(dims)), key=lambda at: sizes[at])
    if sizes[longest] < 4 * sizes[-1]:
        return dims
    return [*dims[:longest], *dims[longest + 1 :], dims[longest]]
