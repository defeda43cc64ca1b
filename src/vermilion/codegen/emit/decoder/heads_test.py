"""Heads normed, turned and written where attention reads them, against numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest

from attention_cases import Array, Case, control, packed, written_queries
from kernels import Memory, isa_for
from vermilion.codegen.emit.decoder.cache import CacheForm, CacheNumbers
from vermilion.codegen.emit.decoder.heads import HeadsSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import View


@dataclass(frozen=True)
class Turning:
    """What is done to the heads of queries and keys."""

    turned: int = 0
    query_epsilon: float | None = None
    key_epsilon: float | None = None
    part: Literal["whole", "keys", "queries"] = "whole"
    is_normed_last: bool = False


TURNINGS = (
    Turning(),
    Turning(turned=48),
    Turning(turned=20),  # less than the head, and halves that are no whole vector
    Turning(turned=48, query_epsilon=1e-5, key_epsilon=0.5),
    Turning(query_epsilon=1e-5),
    Turning(turned=48, query_epsilon=1e-5, key_epsilon=0.5, is_normed_last=True),
    Turning(turned=48, key_epsilon=1e-5, part="keys"),
    Turning(turned=48, query_epsilon=1e-5, part="queries"),
)


def turned(heads: Array, waves: Sequence[Array], first: int) -> Array:
    """Turn the first numbers of (sequence, head, position, number) by their position."""
    half = waves[0].shape[1]
    angles = slice(first, first + heads.shape[2])
    low, high, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    c, s = (wave[angles] for wave in waves)
    return np.concatenate([low * c - high * s, low * s + high * c, rest], -1)


def normed(heads: Array, weight: Array, epsilon: float | None) -> Array:
    if epsilon is None:
        return heads
    return heads / np.sqrt(np.square(heads).mean(-1, keepdims=True) + epsilon) * weight


@pytest.mark.parametrize("storage", ["f32", "bf16_wide", "bf16"])
@pytest.mark.parametrize("turning", TURNINGS, ids=str)
def test_heads(turning: Turning, storage: CacheNumbers) -> None:
    isa = isa_for("cpu")
    if storage == "bf16" and not isa.has_bf16:
        pytest.skip("this machine has no AVX-512 BF16")
    case = Case(61, 5, sequences=2, head_size=48, key_heads=2, group=3)  # over a block's edge
    form, random, max_rows = CacheForm(storage, 48), np.random.default_rng(0), case.rows + 2
    counts = (6, 2, 2)
    parts = [random.standard_normal((2, count, 5, 48)).astype(np.float32) for count in counts]
    rows = np.concatenate([one.transpose(0, 2, 1, 3).reshape(10, -1) for one in parts], 1)
    waves = [random.standard_normal((80, turning.turned // 2)).astype(np.float32) for _ in "cs"]
    weights = [random.standard_normal(48).astype(np.float32) for _ in "qk"]
    epsilons = (turning.query_epsilon, turning.key_epsilon)
    memory = Memory()
    packed_rows = memory.tensor("rows", rows)
    starts = {"whole": (0, 288, 384), "keys": (288, 384), "queries": (0,)}[turning.part]
    arguments = [View(packed_rows.buffer, "f32", (1,), (1,), start) for start in starts]
    if turning.turned:
        arguments += [memory.tensor("wave", wave) for wave in waves]
    arguments += [
        memory.tensor("norm", weight)
        for weight, epsilon in zip(weights, epsilons, strict=True)
        if epsilon is not None
    ]
    cache_size = 2 * 2 * case.capacity * 48
    keys, values = (memory.tensor(name, np.zeros(cache_size), form.stored) for name in "kv")
    queries = memory.tensor("queries", np.zeros(2 * max_rows * 3 * 48), form.multiplied)
    written = {"whole": [keys, values, queries], "keys": [keys, values], "queries": [queries]}
    arguments += written[turning.part]
    spec = HeadsSpec(
        form, 6, 2, (480,) * len(starts), 0.25, turning.turned, *epsilons, max_rows, turning.part,
        turning.is_normed_last,
    )  # fmt: skip
    memory.run([Step(spec, (control(memory, case), *arguments), tuple(written[turning.part]))], isa)
    wanted_queries, wanted_keys = (
        normed(turned(heads.astype(np.float64), waves, case.past), weight, epsilon)
        if turning.is_normed_last
        else turned(normed(heads.astype(np.float64), weight, epsilon), waves, case.past)
        for heads, weight, epsilon in zip(parts[:2], weights, epsilons, strict=True)
    )
    before = np.zeros((2, 2, case.past, 48))
    wanted_keys, wanted_values = (
        packed(np.concatenate([before, new], 2), form, case.capacity, are_keys=are_keys, rest=0.0)
        for new, are_keys in ((wanted_keys, True), (parts[2], False))
    )
    asked = written_queries(case, wanted_queries * 0.25, max_rows).ravel()
    for view, wanted in ((keys, wanted_keys), (values, wanted_values), (queries, asked)):
        found = memory.array(view).astype(np.float64)
        if any(view is one for one in written[turning.part]):
            limit = 2e-6 if view.storage == "f32" else 2.0**-8
            assert np.abs(found - wanted).max() <= limit * np.abs(wanted).max()
        else:
            assert not found.any(), "what another part writes is left alone"
