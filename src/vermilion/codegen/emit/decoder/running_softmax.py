"""The running softmax of attention: scores become weights, block of keys after block of keys."""

from __future__ import annotations

import math
from collections.abc import Callable

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.decoder.cache import CacheForm
from vermilion.codegen.emit.decoder.lanes import tree
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.emit.vector_math import VectorMath

# Lower than any score; its difference to one is finite.
LOWEST = -1e30


def score_unit(cache: CacheForm) -> float:
    """Return what scores are multiplied by, with the queries: powers of two are cheaper than of e.

    Not in float32, which is for comparing.
    """
    return math.log2(math.e) if cache.storage == "bf16" else 1.0


def power(cache: CacheForm, math_: VectorMath, score: Value) -> Value:
    """Return e to the power of a score in its unit."""
    return math_.exp2_coarse(score) if cache.storage == "bf16" else math_.exp(score)


def store_peak(
    arithmetic: Arithmetic, scores: list[Value], place: tuple[Value, int], first: int
) -> None:
    """Store the highest score of each of `LANES` lanes of a row, of vectors from `first` on.

    `place` is a pointer, and bytes from there. A vector may have fewer lanes; what was stored of
    the vectors before counts.
    """
    f, m, parts = arithmetic.f, arithmetic.math, LANES // arithmetic.lanes
    for part in range(min(parts, len(scores))):
        peak = tree(scores[part::parts], m.maximum)
        own = f.at(place[0], place[1] + (first + part) % parts * arithmetic.lanes * 4)
        if first >= parts:
            peak = m.maximum(peak, arithmetic.load("f32", own))
        arithmetic.store("f32", peak, own)


class RunningSoftmax:
    """The running softmax of one row and some vectors of keys.

    Keys beyond the row's own position, or too far before it, weigh nothing; without `is_masked`
    there are none.
    """

    def __init__(
        self,
        cache: CacheForm,
        window: int,
        bound: float,
        f: Function,
        vectors: int,
        *,
        is_masked: bool,
    ) -> None:
        self.cache = cache
        self.window = window
        self.bound = bound
        self.is_masked = is_masked
        self.vectors = vectors
        self.f = f
        self.arithmetic = Arithmetic(f, LANES)

    def write_peak(self) -> None:
        """Write the highest score of every lane."""
        f, m = self.f, self.arithmetic.math
        scores, own, peak_at = f.arguments
        lowest = m.number(LOWEST)
        values = [
            self._if_seen(own, v, self._score(scores, v), lowest) for v in range(self.vectors)
        ]
        self.arithmetic.store("f32", self._folded(values, m.maximum), peak_at)

    def write_weights(self) -> None:
        """Write the weights over the scores, and their sums."""
        f, m = self.f, self.arithmetic.math
        scores, own, top_at, factor_at, sums_at = f.arguments
        base = self.arithmetic.load_splat("f32", top_at)
        nothing = m.number(0.0)
        weights = [
            self._if_seen(
                own,
                v,
                power(self.cache, m, m.subtract(self._score(scores, v), base)),
                nothing,
            )
            for v in range(self.vectors)
        ]
        # A 16-bit weight lies at or before its score, and all scores are read already.
        if self.cache.storage == "bf16":
            self._store_pairs(weights, scores)
        else:
            for v, weight in enumerate(weights):
                self.arithmetic.store("f32", weight, f.at(scores, v * LANES * 4))
        factor = self.arithmetic.load_splat("f32", factor_at)
        sums = self.arithmetic.load("f32", sums_at)
        total = m.fma(sums, factor, self._folded(weights, m.add))
        self.arithmetic.store("f32", total, sums_at)

    def _store_pairs(self, weights: list[Value], target: Value) -> None:
        """Write vectors as bfloat16, two by one instruction."""
        f, name = self.f, "llvm.x86.avx512bf16.cvtne2ps2bf16.512"
        for v in range(0, self.vectors, 2):
            both = f.intrinsic(name, f"<{2 * LANES} x bfloat>", [weights[v + 1], weights[v]])
            f.store(both, target, v * LANES * 2, align=64)

    def _score(self, scores: Value, v: int) -> Value:
        m, bound = self.arithmetic.math, self.bound
        value = self.arithmetic.load("f32", self.f.at(scores, v * LANES * 4))
        if not bound:
            return value
        unit = score_unit(self.cache)
        inside = m.multiply(value, m.number(1.0 / (bound * unit)))
        return m.multiply(m.tanh(inside), m.number(bound * unit))

    def _if_seen(self, own: Value, v: int, value: Value, otherwise: Value) -> Value:
        if not self.is_masked:
            return value
        return self.f.select(self._seen(own, v), value, otherwise)

    def _seen(self, own: Value, v: int) -> Value:
        f = self.f
        numbers = ", ".join(f"i32 {v * LANES + lane}" for lane in range(LANES))
        lanes = Value(f"<{LANES} x i32>", f"<{numbers}>")
        here = f.convert("trunc", own, "i32")
        seen = f.compare("sle", lanes, self.arithmetic.splat(here))
        if self.window:
            far = f.binary("sub", here, constant("i32", self.window))
            seen = f.binary("and", seen, f.compare("sgt", lanes, self.arithmetic.splat(far)))
        return seen

    @staticmethod
    def _folded(values: list[Value], join: Callable[[Value, Value], Value]) -> Value:
        result = values[0]
        for value in values[1:]:
            result = join(result, value)
        return result
