"""Any number of workers: the same numbers, run after run. Random shapes: `random_graphs`."""

from __future__ import annotations

import math

import numpy as np
import pytest

from float_graphs import run_native
from kernels import TARGETS
from native_text import normal, read, refusals


def declared(**shapes: tuple[int, ...]) -> str:
    return ", ".join(f"float[{','.join(map(str, shape))}] {name}" for name, shape in shapes.items())


@pytest.mark.parametrize("target", TARGETS)
def test_any_number_of_workers_gives_the_same_run_after_run(target: str) -> None:
    """A small network with every family that splits its work."""
    weights = {
        "w1": normal(40, 3, 3, 3, seed=1), "w2": normal(40, 40, 3, 3, seed=2),
        "w3": normal(40, 1, 3, 3, seed=3), "w4": normal(40, 30, seed=4),
        "s": np.array([1.0, 1.0, 2.0, 2.0], np.float32),
    }  # fmt: skip
    text = f"""(float[2,3,40,40] x, {declared(**{k: v.shape for k, v in weights.items()})})
        => (float[2,30] y, float[2,40,40,40] z) {{
        a = Conv<pads = [1, 1, 1, 1]>(x, w1)
        b = Conv<pads = [1, 1, 1, 1]>(a, w2)
        c = Conv<pads = [1, 1, 1, 1], group = 40>(b, w3)
        d = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(c)
        z = Resize<mode = "linear">(d, , s)
        e = GlobalAveragePool(z)
        f = Flatten(e)
        g = MatMul(f, w4)
        y = Softmax<axis = -1>(g)
    }}"""
    model = read(text, **weights)
    assert not refusals(model)
    inputs = {"x": normal(2, 3, 40, 40)}
    one = run_native(model, inputs, target, "fp32", 1)
    assert math.isfinite(float(one["z"].sum()))
    for threads in (1, 2, 2, 4, 4):
        again = run_native(model, inputs, target, "fp32", threads)
        assert all(np.array_equal(again[name], one[name]) for name in one), f"{threads} workers"
