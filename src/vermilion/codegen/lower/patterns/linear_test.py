"""Scales of the run and of an axis, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from float_graphs import run_native
from kernels import TARGETS
from native_text import normal, read, refusals
from vermilion.ir.execute import open_session, run_session

Array = NDArray[Any]


def codes(kind: Any, *shape: int) -> Array:
    info = np.iinfo(kind)
    return np.random.default_rng(1).integers(info.min, info.max, shape, kind, endpoint=True)


def held(text: str, inputs: dict[str, Array], opset: int = 21, **weights: Array) -> None:
    model = read(text, opset, **weights)
    assert not refusals(model)
    wanted = run_session(open_session(model, threads=1), inputs)
    for target in TARGETS:
        got = run_native(model, inputs, target, "fp32", 2)
        for name, right in wanted.items():
            assert (got[name].dtype, got[name].shape) == (right.dtype, right.shape)
            np.testing.assert_array_equal(got[name], right)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint16, np.int16])
def test_one_scale_that_the_run_has(kind: Any) -> None:
    name = np.dtype(kind).name
    text = f"""(float[5,70] x, float s, {name} z) => ({name}[5,70] q, float[5,70] y)
        {{ q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z) }}"""
    x = normal(5, 70) * 3
    x[0, :3] = (1e9, -1e9, 0.0)
    held(text, {"x": x, "s": np.array(0.011, np.float32), "z": codes(kind)})


def test_a_scale_that_is_found_in_the_run() -> None:
    text = """(float[5,70] x) => (float[5,70] y, uint8[5,70] r) {
        q, s, z = DynamicQuantizeLinear (x)  y = DequantizeLinear (q, s, z)
        h = Add (s, s)  r = QuantizeLinear (x, h, z) }"""
    held(text, {"x": normal(5, 70)})


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("is_constant", [True, False])
def test_a_scale_for_each_entry_of_an_axis(axis: int, is_constant: bool) -> None:
    size = (3, 7, 18)[axis]
    text = f"""(float[3,7,18] x, float[{size}] s, int8[{size}] z)
        => (int8[3,7,18] q, float[3,7,18] y) {{
        q = QuantizeLinear <axis = {axis}> (x, s, z)
        y = DequantizeLinear <axis = {axis}> (q, s, z) }}"""
    scales = np.random.default_rng(0).uniform(0.01, 0.03, size).astype(np.float32)
    given = {"s": scales, "z": codes(np.int8, size)}
    held(
        text,
        {"x": normal(3, 7, 18), **({} if is_constant else given)},
        **(given if is_constant else {}),
    )


def test_sums_without_a_zero_point() -> None:
    text = "(int32[4,9] x, float s) => (float[4,9] y) { y = DequantizeLinear (x, s) }"
    held(text, {"x": codes(np.int32, 4, 9), "s": np.array(0.3, np.float32)})


@pytest.mark.parametrize("axis", [0, 1])
def test_programs_in_bfloat16_keep_the_scales_of_an_axis(axis: int) -> None:
    size = (37, 70)[axis]
    text = f"""(float[37,70] x, float[{size}] s) => (uint8[37,70] q)
        {{ q = QuantizeLinear <axis = {axis}> (x, s) }}"""
    scales = np.random.default_rng(0).uniform(0.015, 0.03, size).astype(np.float32)
    x = normal(37, 70).astype(ml_dtypes.bfloat16).astype(np.float32)
    got = run_native(read(text, 21, s=scales), {"x": x}, "cpu", "bf16")["q"]
    steps = x / np.expand_dims(scales, 1 - axis)
    np.testing.assert_array_equal(got, np.clip(np.round(steps), 0, 255))
