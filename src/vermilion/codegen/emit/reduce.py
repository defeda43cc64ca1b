"""Reductions over dimensions: sums, means, extremes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import SUMS, Totals, across, for_vectors, load, outer_rows
from vermilion.codegen.emit.values import Index, Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Constant, Expression, Operand, apply
from vermilion.ir.symbolic import is_known, is_one

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
    # What the total is divided by before `finish`; a number that is known is part of that.
    divisor: int = 1

    family = "reduce"

    @property
    def along_kept(self) -> bool:
        """Whether vectors run along the last kept dimension."""
        if not self.kept or not is_one(self.kept[-1][1]) or not is_one(self.kept[-1][2]):
            return False
        return not (
            self.reduced and is_one(self.reduced[-1][1]) and not is_one(self.reduced[-1][0])
        )

    @property
    def _outer(self) -> tuple[tuple[int, int, int], ...]:
        return self.kept[:-1] if self.along_kept else self.kept

    def _blocks(self, lanes: int = 16) -> int:
        return -(-self.kept[-1][0] // lanes) if self.along_kept else 1

    # Blocks of the widest vector: a unit on a narrower machine computes two.
    @property
    def units(self) -> int:
        """One unit a row of kept dimensions and block of 16 along the dense one."""
        return math.prod(d[0] for d in self._outer) * self._blocks()

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
                is_whole = is_known(size) and size % isa.lanes == 0
                mask = None if is_whole else arithmetic.tail_mask(left)
                here = f.at(come, f.multiply(first, STORAGE_BYTES[self.storage]))

                def read(there: Value, mask: Value | None = mask) -> Value:
                    value = arithmetic.load(self.storage, there, mask=mask)
                    return arithmetic.evaluate(self.prepare, lambda _: value)

                total = self._total(arithmetic, here, self.reduced, read, SUMS)
                total = self._divided(arithmetic, total)
                result = arithmetic.evaluate(self.finish, lambda _, whole=total: whole)  # type: ignore[misc]
                place = f.at(go, f.multiply(first, STORAGE_BYTES[self.out_storage]))
                arithmetic.store(self.out_storage, result, place, mask=mask)

    def _dense_reduced(self, f: Function, isa: Isa, come: Value, go: Value) -> None:
        arithmetic = Arithmetic(f, isa.lanes)
        *outer, (size, stride) = self.reduced or ((1, 1),)
        if not is_known(size):
            whole = self._total(
                arithmetic, come, outer,
                lambda here: self._open_row(arithmetic, here, size, stride), 1,
            )  # fmt: skip
            self._store_total(arithmetic, whole, go)
            return
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

        self._store_total(arithmetic, self._total(arithmetic, come, outer, row, 1), go)

    def _store_total(self, arithmetic: Arithmetic, lanes: Value, go: Value) -> None:
        whole = self._divided(arithmetic, self._across(arithmetic.f, arithmetic, lanes))
        result = arithmetic.evaluate(self.finish, lambda _: whole)
        arithmetic.store(self.out_storage, result, go, mask=arithmetic.tail_mask(1))

    def _open_row(self, arithmetic: Arithmetic, here: Value, size: Index, stride: int) -> Value:
        """Return the total, lane by lane, of a row whose size the run has."""
        totals = Totals(arithmetic, self.combine, _START[self.combine], SUMS)

        def take(at: Value, mask: Value | None, number: int) -> None:
            totals.take(number, self._vector(arithmetic, here, at, stride, mask), mask)

        for_vectors(arithmetic.f, arithmetic, size, take)
        return totals.vector()

    def _divided(self, arithmetic: Arithmetic, total: Value) -> Value:
        if is_one(self.divisor):
            return total
        f = arithmetic.f
        divisor = f.convert("sitofp", f.index(self.divisor), "float")
        return arithmetic.math.divide(total, arithmetic.splat(divisor))

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
        if not is_known(count):
            return self._open_run(arithmetic, first, count, item)
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

    def _open_run(
        self, arithmetic: Arithmetic, first: Value, count: Index, item: Callable[[Value], Value]
    ) -> Value:
        """Return the total of so many items as the run says; each run has a total of its own."""
        f, start = arithmetic.f, _START[self.combine]
        totals = Totals(arithmetic, self.combine, start, 1)
        with f.loop(0, count, _LONGEST_RUN) as begin:
            run = Totals(arithmetic, self.combine, start, 1)
            with f.loop(begin, f.minimum(f.add(begin, _LONGEST_RUN), count)) as i:
                run.take(0, item(f.add(first, i)))
            totals.take(0, run.vector())
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


@dataclass(frozen=True)
class ExtremesSpec:
    """`outputs[kept] = expressions(least, greatest)` of what is reduced, NaN left out.

    Dimensions as in `ReduceSpec`. Of a pair of tensors that lie alike, the first has the least
    numbers and the second the greatest: those of an earlier step's rows.
    """

    storage: Storage
    kept: tuple[tuple[int, int, int], ...]
    reduced: tuple[tuple[int, int], ...]
    is_pair: bool
    expressions: tuple[Expression, Expression]
    out_storages: tuple[Storage, Storage]

    family = "extremes"

    @property
    def units(self) -> int:
        """One unit a row of kept dimensions."""
        return math.prod(size for size, _, _ in self.kept)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        count = 2 if self.is_pair else 1
        f, pointers, units = begin_kernel(module, name, count + 2)
        item = STORAGE_BYTES[self.storage]
        sizes = [item] * count + [STORAGE_BYTES[storage] for storage in self.out_storages]
        dims = [(size, (come,) * count + (go, go)) for size, come, go in self.kept]
        with f.loop(*units) as unit:
            moved = outer_rows(f, unit, dims, pointers, sizes)
            self._row(Arithmetic(f, isa.lanes), moved[:count], moved[count:])
        f.finish()

    def _row(self, arithmetic: Arithmetic, come: Sequence[Value], go: Sequence[Value]) -> None:
        f, m = arithmetic.f, arithmetic.math
        low = [f.slot(m.number(math.inf)) for _ in range(SUMS)]
        high = [f.slot(m.number(-math.inf)) for _ in range(SUMS)]
        *outer, (size, stride) = self.reduced

        def gather(places: Sequence[Value], dims: Sequence[tuple[int, int]]) -> None:
            if dims:
                (count, step), *inner = dims
                with f.loop(0, count) as i:
                    offset = f.multiply(i, step * STORAGE_BYTES[self.storage])
                    gather([f.at(place, offset) for place in places], inner)
                return
            for_vectors(f, arithmetic, size, lambda at, mask, n: take(places, at, mask, n))

        def take(places: Sequence[Value], at: Value, mask: Value | None, number: int) -> None:
            loaded = [load(arithmetic, self.storage, p, at, stride, mask) for p in places]
            for slots, value, join in ((low, loaded[0], m.minimum), (high, loaded[-1], m.maximum)):
                slot = slots[number]
                known = slot.get()
                joined = join(value, known)
                slot.set(joined if mask is None else f.select(mask, joined, known))

        gather(come, outer)
        ends = []
        for slots, join, word in ((low, m.minimum, "min"), (high, m.maximum, "max")):
            whole = slots[0].get()
            for slot in slots[1:]:
                whole = join(whole, slot.get())
            ends.append(across(arithmetic, word, whole))
        for expression, storage, place in zip(self.expressions, self.out_storages, go, strict=True):
            result = arithmetic.evaluate(expression, lambda index: ends[index])
            arithmetic.store(storage, result, place, mask=arithmetic.tail_mask(1))


def mean_of(count: int) -> Expression:
    """Return the finish that makes a mean of a sum. 1 ÷ count is exact for powers of two alone."""
    if not is_known(count):
        return _SAME  # `divisor` divides
    if count & (count - 1) == 0:
        return apply("mul", Operand(0), Constant(1.0 / count))
    return apply("div", Operand(0), Constant(float(count)))
