"""Reductions over dimensions: sums, means, extremes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value, constant
from vermilion.codegen.emit.rows import SUMS, Totals, across, load, outer_rows
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Constant, Expression, Operand, apply

Combine = Literal["add", "max", "min", "mul"]
_SAME: Expression = Operand(0)
# So many are added to one sum, then such sums to one: equal numbers are rounded the same way each
# time, and 500 of them in a row were off by 60 units in the last place.
_LONGEST_RUN = 64
_START = {"add": 0.0, "max": -math.inf, "min": math.inf, "mul": 1.0}


@dataclass(frozen=True)
class ReduceSpec:
    """`output[kept] = finish(combine over reduced of prepare(input[kept, reduced]))`, in float32.

    Each dimension is (size, input stride, output stride); reduced ones have no output stride. Where
    the last kept dimension is dense in the input, vectors run along it; else along the last
    reduced one.
    """

    combine: Combine
    storage: Storage
    out_storage: Storage
    kept: tuple[tuple[int, int, int], ...]
    reduced: tuple[tuple[int, int], ...]
    prepare: Expression = _SAME
    finish: Expression = _SAME

    family = "reduce"

    @property
    def along_kept(self) -> bool:
        """Whether vectors run along the last kept dimension."""
        if not self.kept or self.kept[-1][1] != 1 or self.kept[-1][2] != 1:
            return False
        return not (self.reduced and self.reduced[-1][1] == 1 and self.reduced[-1][0] > 1)

    @property
    def _outer(self) -> tuple[tuple[int, int, int], ...]:
        return self.kept[:-1] if self.along_kept else self.kept

    def _blocks(self, lanes: int = 16) -> int:
        return -(-self.kept[-1][0] // lanes) if self.along_kept else 1

    # Blocks of the widest vector: a unit on a narrower machine computes two.
    @property
    def units(self) -> int:
        """One unit a row of kept dimensions and block of 16 along the dense one."""
        return max(1, math.prod(d[0] for d in self._outer)) * self._blocks()

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 2)
        sizes = (STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage])
        outer = [(size, tuple(strides)) for size, *strides in self._outer]
        blocks = self._blocks()
        with f.loop(*units) as unit:
            block, rest = f.remainder(unit, blocks), f.divide(unit, blocks)
            come, go = outer_rows(f, rest, outer, pointers, sizes)
            if self.along_kept:
                self._dense_kept(f, isa, come, go, f.multiply(block, 16))
            else:
                self._dense_reduced(f, isa, come, go)
        f.finish()

    def _dense_kept(self, f: Function, isa: Isa, come: Value, go: Value, start: Value) -> None:
        arithmetic = Arithmetic(f, isa.lanes)
        size = self.kept[-1][0]
        for part in range(16 // isa.lanes):
            first = f.add(start, part * isa.lanes)
            left = f.subtract(size, first)
            with f.when(f.compare("sgt", left, constant("i64", 0))):
                mask = arithmetic.tail_mask(left) if size % isa.lanes else None
                here = f.at(come, f.multiply(first, STORAGE_BYTES[self.storage]))

                def read(there: Value, mask: Value | None = mask) -> Value:
                    value = arithmetic.load(self.storage, there, mask=mask)
                    return arithmetic.evaluate(self.prepare, lambda _: value)

                total = self._total(arithmetic, here, self.reduced, read, SUMS)
                result = arithmetic.evaluate(self.finish, lambda _, whole=total: whole)  # type: ignore[misc]
                place = f.at(go, f.multiply(first, STORAGE_BYTES[self.out_storage]))
                arithmetic.store(self.out_storage, result, place, mask=mask)

    def _dense_reduced(self, f: Function, isa: Isa, come: Value, go: Value) -> None:
        arithmetic = Arithmetic(f, isa.lanes)
        *outer, (size, stride) = self.reduced or ((1, 1),)
        vectors, rest = divmod(size, isa.lanes)

        def row(here: Value) -> Value:
            def item(at: Value) -> Value:
                return self._vector(arithmetic, here, f.multiply(at, isa.lanes), stride, None)

            if not rest:
                return self._run(arithmetic, constant("i64", 0), vectors, item, SUMS)
            mask = arithmetic.tail_mask(rest)
            tail = self._vector(arithmetic, here, f.index(vectors * isa.lanes), stride, mask)
            tail = f.select(mask, tail, arithmetic.math.number(_START[self.combine]))
            if not vectors:
                return tail
            whole = self._run(arithmetic, constant("i64", 0), vectors, item, SUMS)
            return self._join(arithmetic, tail, whole)

        whole = self._across(f, arithmetic, self._total(arithmetic, come, outer, row, 1))
        result = arithmetic.evaluate(self.finish, lambda _: whole)
        arithmetic.store(self.out_storage, result, go, mask=arithmetic.tail_mask(1))

    def _vector(
        self, arithmetic: Arithmetic, here: Value, at: Value, stride: int, mask: Value | None
    ) -> Value:
        value = load(arithmetic, self.storage, here, at, stride, mask)
        return arithmetic.evaluate(self.prepare, lambda _: value)

    def _total(
        self,
        arithmetic: Arithmetic,
        here: Value,
        dims: Sequence[tuple[int, int]],
        read: Callable[[Value], Value],
        abreast: int,
    ) -> Value:
        """Return the total over dimensions of what `read` gives at each place."""
        if not dims:
            return read(here)
        (size, stride), *inner = dims
        f = arithmetic.f

        def item(at: Value) -> Value:
            there = f.at(here, f.multiply(at, stride * STORAGE_BYTES[self.storage]))
            return self._total(arithmetic, there, inner, read, abreast)

        return self._run(arithmetic, constant("i64", 0), size, item, 1 if inner else abreast)

    def _run(
        self,
        arithmetic: Arithmetic,
        first: Value,
        count: int,
        item: Callable[[Value], Value],
        abreast: int,
    ) -> Value:
        """Return the total of `count` items. Of many, each run has a total of its own."""
        f = arithmetic.f
        if count <= _LONGEST_RUN:
            abreast = min(abreast, count)
            totals = Totals(arithmetic, self.combine, _START[self.combine], abreast)
            whole = count - count % abreast
            with f.loop(0, whole, abreast) as i:
                for number in range(abreast):
                    totals.take(number, item(f.add(f.add(first, i), number)))
            for number in range(count - whole):
                totals.take(number, item(f.add(first, whole + number)))
            return totals.vector()
        length = _LONGEST_RUN
        while length * _LONGEST_RUN < count:
            length *= _LONGEST_RUN
        totals = Totals(arithmetic, self.combine, _START[self.combine], 1)
        with f.loop(0, count // length) as i:
            start = f.add(first, f.multiply(i, length))
            totals.take(0, self._run(arithmetic, start, length, item, abreast))
        if rest := count % length:
            start = f.add(first, count - rest)
            totals.take(0, self._run(arithmetic, start, rest, item, abreast))
        return totals.vector()

    def _join(self, arithmetic: Arithmetic, a: Value, b: Value) -> Value:
        # What was gathered so far comes last: nothing waits for its comparison with itself.
        node = apply(self.combine, Operand(1), Operand(0))
        values = (a, b)
        return arithmetic.evaluate(node, lambda index: values[index])

    def _across(self, f: Function, arithmetic: Arithmetic, vector: Value) -> Value:
        """Return the total of all lanes in every lane."""
        if self.combine in ("max", "min"):
            return across(arithmetic, self.combine, vector)
        name = f"llvm.vector.reduce.f{self.combine}.v{arithmetic.lanes}f32"
        f.module.declare(name, "float", ["float", vector.type])
        start = "0x8000000000000000" if self.combine == "add" else "1.0"
        total = f.emit("float", f"call reassoc float @{name}(float {start}, {vector})")
        return arithmetic.splat(total)


def mean_of(count: int) -> Expression:
    """Return the finish that makes a mean of a sum. 1 ÷ count is exact for powers of two alone."""
    if count & (count - 1) == 0:
        return apply("mul", Operand(0), Constant(1.0 / count))
    return apply("div", Operand(0), Constant(float(count)))
