"""Softmax and LogSoftmax along one dimension in float32, and the softmax inside attention."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.rows import Totals, for_vectors, load, outer_rows, store
from vermilion.codegen.emit.values import Index, Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known, is_one


@dataclass(frozen=True)
class SoftmaxSpec:
    """`e^(x - max) ÷ Σ e^(x - max)` over `size` elements, or its logarithm.

    `kept` are the other dimensions: (size, (input stride, output stride)). Where the softmax runs
    across rows of memory (`across_rows`), vectors run along the last kept dimension instead.
    """

    storage: Storage
    out_storage: Storage
    kept: tuple[tuple[int, tuple[int, ...]], ...]
    size: int
    stride: int
    out_stride: int
    is_log: bool
    lanes: int

    family = "softmax"

    @property
    def across_rows(self) -> bool:
        """Whether vectors run along the last kept dimension."""
        return (
            not (is_one(self.stride) and is_one(self.out_stride))
            and bool(self.kept)
            and all(map(is_one, self.kept[-1][1]))
        )

    @property
    def _outer(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        return self.kept[:-1] if self.across_rows else self.kept

    @property
    def _blocks(self) -> int:
        return -(-self.kept[-1][0] // self.lanes) if self.across_rows else 1

    @property
    def units(self) -> int:
        """One unit a row, or a vector of rows."""
        return math.prod(size for size, _ in self._outer) * self._blocks

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 2)
        sizes = (STORAGE_BYTES[self.storage], STORAGE_BYTES[self.out_storage])
        arithmetic = Arithmetic(f, isa.lanes)
        with f.loop(*units) as unit:
            row = f.divide(unit, self._blocks)
            come, go = outer_rows(f, row, self._outer, pointers, sizes)
            if self.across_rows:
                first = f.multiply(f.remainder(unit, self._blocks), self.lanes)
                self._column(f, arithmetic, come, go, first)
            else:
                self._row(f, arithmetic, come, go)
        f.finish()

    def _row(self, f: Function, arithmetic: Arithmetic, come: Value, go: Value) -> None:
        m = arithmetic.math
        # What is stored as float32 is kept in the result while the sum is made.
        keeps = self.out_storage == "f32" and not self.is_log
        highest = Totals(arithmetic, "top", -math.inf)

        def value(at: Value, mask: Value | None) -> Value:
            return load(arithmetic, self.storage, come, at, self.stride, mask)

        for_vectors(
            f, arithmetic, self.size,
            lambda at, mask, number: highest.take(number, value(at, mask), mask),
        )  # fmt: skip
        top = highest.splat()
        total = Totals(arithmetic, "add", 0.0)

        def put(result: Value, at: Value, mask: Value | None) -> None:
            store(arithmetic, self.out_storage, result, go, at, self.out_stride, mask)

        def add(at: Value, mask: Value | None, number: int) -> None:
            e = m.exp(m.subtract(value(at, mask), top))
            if keeps:
                put(e, at, mask)
            total.take(number, e, mask)

        for_vectors(f, arithmetic, self.size, add)
        whole = total.splat()
        last = m.log(whole) if self.is_log else m.divide(m.number(1.0), whole)

        def finish(at: Value, mask: Value | None, number: int) -> None:
            if self.is_log:
                put(m.subtract(m.subtract(value(at, mask), top), last), at, mask)
            elif keeps:
                e = load(arithmetic, "f32", go, at, self.out_stride, mask)
                put(m.multiply(e, last), at, mask)
            else:
                put(m.multiply(m.exp(m.subtract(value(at, mask), top)), last), at, mask)

        for_vectors(f, arithmetic, self.size, finish)

    def _column(
        self, f: Function, arithmetic: Arithmetic, come: Value, go: Value, first: Value
    ) -> None:
        """Compute a vector of neighbouring columns, walking down the rows."""
        m = arithmetic.math
        width = self.kept[-1][0]
        is_whole = is_known(width) and width % self.lanes == 0
        mask = None if is_whole else arithmetic.tail_mask(f.subtract(width, first))
        come = f.at(come, f.multiply(first, STORAGE_BYTES[self.storage]))
        go = f.at(go, f.multiply(first, STORAGE_BYTES[self.out_storage]))

        def value(k: Value) -> Value:
            place = f.at(come, f.multiply(k, self.stride * STORAGE_BYTES[self.storage]))
            return arithmetic.load(self.storage, place, mask=mask)

        def over(slot: Slot, step: object) -> Value:
            with f.loop(0, self.size) as k:
                slot.set(step(slot.get(), k))  # type: ignore[operator]
            return slot.get()

        top = over(f.slot(m.number(-math.inf)), lambda t, k: m.maximum(value(k), t))
        whole = over(f.slot(m.number(0.0)), lambda t, k: m.add(t, m.exp(m.subtract(value(k), top))))
        last = m.log(whole) if self.is_log else m.divide(m.number(1.0), whole)
        with f.loop(constant("i64", 0), self.size) as k:
            below = m.subtract(value(k), top)
            result = m.subtract(below, last) if self.is_log else m.multiply(m.exp(below), last)
            place = f.at(go, f.multiply(k, self.out_stride * STORAGE_BYTES[self.out_storage]))
            arithmetic.store(self.out_storage, result, place, mask=mask)


# A row's state, in float32: the highest score so far, the sum, the factor for what was summed.
TOP, SUM, FACTOR = 0, 4, 8


def write_weights(
    module: Module, name: str, lanes: int, keys: int | None, storage: Storage, *, is_whole: bool,
    expression: Expression | None = None,
) -> None:  # fmt: skip
    """Write the function (scores, state) for a row of `keys` scores.

    Without `keys` their number is a third argument, and a last vector of weights is filled up with
    0. Where the block is all there is (`is_whole`), nothing was summed before. With an expression
    the weights are divided by their sum, which is 1 then, and are its results.
    """
    if module.has(name):
        return
    last = [] if keys is not None else [("keys", "i64")]
    f = Function(module, name, [("scores", "ptr"), ("state", "ptr"), *last])
    scores, state = f.arguments[:2]
    count: Index = keys if keys is not None else f.arguments[2]
    arithmetic = Arithmetic(f, lanes)
    m = arithmetic.math

    def score(at: Value, mask: Value | None) -> Value:
        return arithmetic.load("f32", f.at(scores, f.multiply(at, 4)), mask=mask)

    highest = Totals(arithmetic, "top", -math.inf)
    for_vectors(f, arithmetic, count, lambda at, mask, n: highest.take(n, score(at, mask), mask))
    before = arithmetic.load_splat("f32", f.at(state, TOP))
    top = m.maximum(highest.splat(), before)
    # A row that is masked out so far has no highest score: e^(-∞ - 0) is 0, not NaN.
    is_none = f.compare_floats("oeq", top, m.number(-math.inf))
    base = f.select(is_none, m.number(0.0), top)
    total = Totals(arithmetic, "add", 0.0)

    def weigh(at: Value, mask: Value | None, number: int) -> None:
        weight = m.exp(m.subtract(score(at, mask), base))
        total.take(number, weight, mask)
        # A 16-bit weight lies at or before its score: it overwrites nothing that is still read.
        place = f.at(scores, f.multiply(at, STORAGE_BYTES[storage]))
        if keys is None and mask is not None:
            weight, mask = f.select(mask, weight, m.number(0.0)), None
        arithmetic.store(storage, weight, place, mask=mask)

    for_vectors(f, arithmetic, count, weigh)
    one = arithmetic.tail_mask(1)
    whole = total.splat()
    if not is_whole:
        factor = m.exp(m.subtract(before, base))
        known = arithmetic.load_splat("f32", f.at(state, SUM))
        whole = m.add(m.multiply(known, factor), whole)
        arithmetic.store("f32", top, f.at(state, TOP), mask=one)
        arithmetic.store("f32", factor, f.at(state, FACTOR), mask=one)
    if expression is not None:
        share = m.divide(m.number(1.0), whole)

        def settle(at: Value, mask: Value | None, number: int) -> None:
            place = f.at(scores, f.multiply(at, STORAGE_BYTES[storage]))
            weight = m.multiply(arithmetic.load(storage, place, mask=mask), share)
            result = arithmetic.evaluate(expression, lambda _: weight, lambda _: scores)
            arithmetic.store(storage, result, place, mask=mask)

        for_vectors(f, arithmetic, count, settle)
        whole = m.number(1.0)
    arithmetic.store("f32", whole, f.at(state, SUM), mask=one)
    f.finish()
