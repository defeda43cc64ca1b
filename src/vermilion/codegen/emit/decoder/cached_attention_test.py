"""Attention over the cache, unit by unit, against numpy in double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import pytest

from attention_cases import Array, Case, control, packed, written_queries
from kernels import Memory, isa_for
from vermilion.codegen.emit.decoder.cache import CacheForm, CacheNumbers
from vermilion.codegen.emit.decoder.cached_attention import CachedAttentionSpec
from vermilion.codegen.emit.decoder.running_softmax import score_unit
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import allocate

# Rows of a register tile that lie beyond the last are read.
_SPARE = 8


CASES = (
    Case(0, 1),  # the very first token: one key
    Case(63, 1),  # the last key of a block
    Case(64, 1),  # the first of the next
    Case(200, 1, sequences=3, key_heads=1, group=1),  # two blocks together and one, then another
    Case(0, 5, positions=4),  # a unit of four positions, and one of a single one
    Case(61, 7, sequences=2, positions=4, head_size=96, group=5),
    Case(130, 9, positions=8, head_size=16, key_heads=3, group=1),  # one vector a head
    Case(0, 130, positions=4, head_size=128, key_heads=1, group=7),
    Case(150, 1, window=5),  # the window begins in the last block
    Case(150, 3, positions=2, window=100, sequences=2),  # in one before
    Case(63, 4, positions=4, window=1),  # each sees itself alone, on both sides of a block's edge
    Case(10, 2, positions=2, window=64, head_size=80),  # a window that nobody fills
    Case(100, 6, positions=4, bound=3.0),
    Case(100, 6, positions=4, bound=3.0, window=33, sequences=2, head_size=32),
    Case(0, 3, positions=2, sink=1.0),
    Case(100, 6, positions=4, sink=40.0, window=33, sequences=2, head_size=32),  # over all scores
)


@dataclass(frozen=True)
class Tensors:
    """(sequence, head, position, number); queries of the last positions alone."""

    queries: Array
    keys: Array
    values: Array


def tensors(case: Case, storage: CacheNumbers) -> Tensors:
    """Return numbers that the cache's storage holds exactly."""
    random = np.random.default_rng(case.total)

    def some(heads: int, count: int) -> Array:
        values = random.standard_normal((case.sequences, heads, count, case.head_size))
        kind = np.float32 if storage == "f32" else ml_dtypes.bfloat16
        return values.astype(kind).astype(np.float64)

    queries = some(case.key_heads * case.group, case.length) / math.sqrt(case.head_size) * 2
    return Tensors(queries, some(case.key_heads, case.total), some(case.key_heads, case.total))


def sinks(case: Case) -> Array:
    """Return a score for each query head."""
    return case.sink - np.arange(case.key_heads * case.group)


def attended(case: Case, given: Tensors) -> Array:
    """Return (row, query head · number), worked out without blocks."""
    keys, values = (one.repeat(case.group, axis=1) for one in (given.keys, given.values))
    scores = given.queries @ keys.swapaxes(2, 3)
    if case.bound:
        scores = np.tanh(scores / case.bound) * case.bound
    own = case.past + np.arange(case.length)[:, None]
    at = np.arange(case.total)
    seen = at <= own
    if case.window:
        seen &= at > own - case.window
    weights = np.where(seen, np.exp(scores), 0.0)
    total = weights.sum(-1, keepdims=True)
    if case.sink:
        total = total + np.exp(sinks(case))[:, None, None]
    result = weights @ values / total
    return result.transpose(0, 2, 1, 3).reshape(case.rows, -1)


@pytest.mark.parametrize(("storage", "limit"), [("f32", 2e-6), ("bf16_wide", 2e-6), ("bf16", 1e-2)])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention(case: Case, storage: CacheNumbers, limit: float) -> None:
    isa = isa_for("cpu")
    if not isa.has_bf16 and storage == "bf16":
        pytest.skip("this machine has no AVX-512 BF16")
    form, given = CacheForm(storage, case.head_size), tensors(case, storage)
    unit, max_rows = score_unit(form), case.rows + 3
    width = case.key_heads * case.group * case.head_size
    queries = written_queries(case, given.queries * unit, max_rows)
    memory = Memory()
    asked = np.pad(queries.ravel(), (0, _SPARE * case.group * case.head_size))
    # What lies behind the last key is of an older text: large, and nobody's to see.
    caches = [
        packed(one, form, case.capacity, are_keys=are_keys, rest=50.0)
        for one, are_keys in ((given.keys, True), (given.values, False))
    ]
    arguments = [
        memory.tensor(name, values, kind)
        for name, values, kind in zip(
            ("queries", "keys", "values"),
            (asked, *caches),
            (form.multiplied, form.stored, form.stored),
            strict=True,
        )
    ]
    own_sinks = [memory.tensor("sinks", sinks(case) * unit)] if case.sink else []
    out = allocate("out", "f32", (max_rows, width + 32))
    memory.array(out)[...] = -7.0
    spec = CachedAttentionSpec(
        form, case.key_heads, case.group, case.positions, case.window, case.bound, width + 32,
        max_rows, bool(own_sinks),
    )  # fmt: skip
    step = Step(spec, (control(memory, case), *arguments, out, *own_sinks), (out,))
    memory.run([step], isa)
    found = memory.array(out)
    wanted = attended(case, given)
    if storage == "bf16":  # the scale is in the queries before they are rounded
        rounded = (given.queries * unit).astype(ml_dtypes.bfloat16).astype(np.float64) / unit
        wanted = attended(case, Tensors(rounded, given.keys, given.values))
    assert np.abs(found[: case.rows, :width] - wanted).max() < limit * np.abs(wanted).max()
    assert (found[case.rows :] == -7.0).all(), "rows that are not there are left alone"
    assert (found[:, width:] == -7.0).all()
