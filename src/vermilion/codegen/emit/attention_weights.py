"""The softmax inside attention: a row of scores becomes weights, in place."""

from __future__ import annotations

import math

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value
from vermilion.codegen.emit.rows import Totals, for_vectors
from vermilion.codegen.tensor import STORAGE_BYTES, Storage

# A row's state, in float32: the highest score so far, the sum, the factor for what was summed.
TOP, SUM, FACTOR = 0, 4, 8
STATE_BYTES = 12


def write_weights(
    module: Module, name: str, lanes: int, keys: int, storage: Storage, *, is_whole: bool
) -> None:
    """Write the function (scores, state) for a row of `keys` scores.

    Where the block is all there is (`is_whole`), nothing was summed before.
    """
    if module.has(name):
        return
    f = Function(module, name, [("scores", "ptr"), ("state", "ptr")])
    scores, state = f.arguments
    arithmetic = Arithmetic(f, lanes)
    m = arithmetic.math

    def score(at: Value, mask: Value | None) -> Value:
        return arithmetic.load("f32", f.at(scores, f.multiply(at, 4)), mask=mask)

    highest = Totals(arithmetic, "top", -math.inf)
    for_vectors(f, arithmetic, keys, lambda at, mask, n: highest.take(n, score(at, mask), mask))
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
        arithmetic.store(storage, weight, place, mask=mask)

    for_vectors(f, arithmetic, keys, weigh)
    one = arithmetic.tail_mask(1)
    whole = total.splat()
    if not is_whole:
        factor = m.exp(m.subtract(before, base))
        known = arithmetic.load_splat("f32", f.at(state, SUM))
        whole = m.add(m.multiply(known, factor), whole)
        arithmetic.store("f32", top, f.at(state, TOP), mask=one)
        arithmetic.store("f32", factor, f.at(state, FACTOR), mask=one)
    arithmetic.store("f32", whole, f.at(state, SUM), mask=one)
    f.finish()
