"""DynamicQuantizeLinear, alone and in front of products, at fixed sizes and at those of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from float_graphs import run_native
from native_text import normal, read, refusals
from vermilion.codegen.lower.integer_matmul_test import codes
from vermilion.ir.execute import open_session, run_session

Array = NDArray[Any]

# Both ends of the range, one side of zero, nothing but zero, equal numbers, halves of a step.
KINDS = {
    "usual": lambda x: x,
    "positive": lambda x: np.abs(x) + 1,
    "negative": lambda x: -np.abs(x) - 1,
    "zeros": np.zeros_like,
    "equal": lambda x: np.full_like(x, 0.3),
    "equal and negative": lambda x: np.full_like(x, -7.25),
    "small": lambda x: x * np.float32(1e-30),
    "large": lambda x: x * np.float32(1e30),
    "halves": lambda x: np.clip(np.round(x * 80) / 2, -127.5, 127.5),
    "one far away": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 3, 1e4, x),
}
SHAPES = ((1,), (37,), (5, 37), (3, 130, 70), (2, 3, 5, 6), (2, 40, 9, 11), ())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_codes_scale_and_zero_point_are_those_of_onnx_runtime(
    kind: str, shape: tuple[int, ...], target: str
) -> None:
    x = np.asarray(KINDS[kind](normal(*shape)), np.float32)
    text = f"(float{list(shape) or ''} x) => (uint8{list(shape) or ''} q, float s, uint8 z)"
    model = read(text + " { q, s, z = DynamicQuantizeLinear (x) }", 13)
    assert not refusals(model)
    wanted = run_session(open_session(model, threads=1), {"x": x})
    got = run_native(model, {"x": x}, target, "fp32", 2)
    for name, right in wanted.items():
        assert (got[name].dtype, got[name].shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(got[name], right)


def test_what_is_read_in_bfloat16_has_its_scale_in_float32() -> None:
    x = normal(6, 64)
    text = "(float[6,64] x) => (uint8[6,64] q, float s, uint8 z)"
    text += " { q, s, z = DynamicQuantizeLinear (x) }"
    got = run_native(read(text, 13), {"x": x}, "cpu", "bf16")
    back = (got["q"].astype(np.float32) - got["z"]) * got["s"]
    assert np.abs(back - x).max() <= 0.51 * got["s"] + np.abs(x).max() * 2.0**-8


def test_products_of_scales_stay_float32_in_bfloat16() -> None:
    x, w = normal(6, 64), codes(np.int8, 64, 48)
    v = np.random.default_rng(0).uniform(0.01, 0.02, 48).astype(np.float32)
    text = """(float[6,64] x, int8[64,48] w, float[48] v) => (float[6,48] y, float[48] c) {
        q, s, z = DynamicQuantizeLinear (x)  i = MatMulInteger (q, w, z)
        f = Cast <to = 1> (i)  c = Mul (s, v)  y = Mul (f, c) }"""
    model = read(text, 13, w=w, v=v)
    rounded = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)  # a bfloat16 already
    got = run_native(model, {"x": rounded}, "cpu", "bf16")
    wanted = run_session(open_session(model, threads=1), {"x": rounded})
    np.testing.assert_allclose(got["c"], wanted["c"], rtol=1e-6)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=2.0**-8, atol=1e-6)


CONVOLUTION = """(float[2,{c},9,10] x, {kind}[24,{c},3,3] w, {kind} t, float v)
    => (float[2,24,9,10] y) {{
    q, s, z = DynamicQuantizeLinear (x)
    i = ConvInteger <pads = [1, 1, 1, 1]> (q, w, z, t)
    f = Cast <to = 1> (i)  c = Mul (s, v)  y = Mul (f, c) }}"""


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("channels", [3, 16])
def test_a_convolution_reads_the_codes_in_their_border(
    kind: str, channels: int, target: str
) -> None:
    text = CONVOLUTION.format(c=channels, kind=kind)
    w = codes(np.dtype(kind), 24, channels, 3, 3)
    t, v = np.array(0 if kind == "int8" else 131, kind), np.array(0.02, np.float32)
    model = read(text, 13, w=w, t=t, v=v)
    assert not refusals(model)
    for x in (normal(2, channels, 9, 10), -np.abs(normal(2, channels, 9, 10)) - 1):
        got = run_native(model, {"x": x}, target, "fp32", 2)["y"]
        np.testing.assert_allclose(got, by_numpy(x, w, t, v), rtol=1e-6, atol=1e-6)


def by_numpy(x: Array, w: Array, t: Array, v: Array) -> Array:
    """Return the convolution of the codes with a border of 1; ONNX Runtime takes no int8 here."""
    from quantized_graphs import conv
    from vermilion.ir.literal.quantize import dynamically_quantized

    q, s, z = (one.array for one in dynamically_quantized(x))
    rest = q.astype(np.int64) - z.astype(np.int64)
    total = conv(rest, w.astype(np.int64) - t.astype(np.int64), 1, (1, 1, 1, 1), 1, 1)
    return np.asarray(total.astype(np.float32) * (s * v))
