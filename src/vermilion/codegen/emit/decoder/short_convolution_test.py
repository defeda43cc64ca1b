"""Gated convolutions over the last positions, in a cache, against numpy."""

from __future__ import annotations

from typing import Literal

import ml_dtypes
import numpy as np
import pytest

from attention_cases import Array, Case, control
from kernels import Memory, isa_for
from vermilion.codegen.emit.decoder.short_convolution import (
    ConvolutionSpec,
    RememberedRows,
    RememberSpec,
)
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import View

WIDTH = 96


def convolved(values: Array, taps: Array) -> Array:
    """Return (sequence, position, number) convolved along the positions."""
    made = np.zeros_like(values)
    for ago, tap in enumerate(taps):
        made[:, ago:] += tap * values[:, : values.shape[1] - ago]
    return made


@pytest.mark.parametrize("storage", ["f32", "bf16"])
@pytest.mark.parametrize(("past", "length"), [(0, 5), (1, 1), (2, 4), (62, 5)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_positions_before_are_read_from_the_cache(
    past: int, length: int, has_bias: bool, storage: Literal["f32", "bf16"]
) -> None:
    isa = isa_for("cpu")
    case, random, memory = Case(past, length, sequences=2), np.random.default_rng(0), Memory()
    max_rows, cache = case.rows + 2, RememberedRows(storage, WIDTH)
    kept = np.float32 if storage == "f32" else ml_dtypes.bfloat16
    rows = random.standard_normal((case.rows, 3 * WIDTH)).astype(np.float32)
    taps = random.standard_normal((3, WIDTH)).astype(np.float32)
    bias = random.standard_normal(WIDTH).astype(np.float32)
    whole = np.full((2, case.capacity, WIDTH), np.inf, np.float32)  # nobody reads what is not there
    whole[:, :past] = random.standard_normal((2, past, WIDTH)).astype(kept)
    view = memory.tensor("rows", rows)
    before, after, value = (View(view.buffer, "f32", (1,), (1,), at * WIDTH) for at in range(3))
    parts = [
        memory.tensor(name, np.ascontiguousarray(whole[:, :, own]), storage)
        for name, own in (("low", slice(WIDTH // 2)), ("high", slice(WIDTH // 2, WIDTH)))
    ]
    out = memory.tensor("out", np.zeros((max_rows, WIDTH), np.float32))
    small = [memory.tensor("taps", taps)] + [memory.tensor("bias", bias)] * has_bias
    words = control(memory, case)
    remember = RememberSpec(cache, (3 * WIDTH, 3 * WIDTH), max_rows)
    convolve = ConvolutionSpec(cache, 3, 3 * WIDTH, WIDTH, max_rows, has_bias)
    steps = [
        Step(remember, (words, before, value, *parts), tuple(parts)),
        Step(convolve, (words, after, *parts, *small, out), (out,)),
    ]
    memory.run(steps, isa)
    shaped = rows.reshape(2, length, 3, WIDTH)
    whole[:, past : past + length] = (shaped[:, :, 0] * shaped[:, :, 2]).astype(kept)
    wanted = convolved(whole[:, : past + length].astype(np.float64), taps)[:, past:]
    wanted = (wanted + (bias if has_bias else 0)) * shaped[:, :, 1]
    found = memory.array(out)[: case.rows].reshape(wanted.shape)
    assert np.abs(found - wanted).max() < 1e-6 * np.abs(wanted).max()
    assert not memory.array(out)[case.rows :].any(), "rows that are not there are left alone"
