"""Attention and RotaryEmbedding written out equal their definition in float64."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from float_graphs import run_native
from kernels import TARGETS
from native_text import normal, read, refusals
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.passes.pipeline import simplify

STACKED = "float[2,4,5,8] q, float[2,4,7,8] k, float[2,4,7,6] v"
SHARED = "float[2,4,5,8] q, float[2,2,7,8] k, float[2,2,7,6] v"
FLAT = "float[2,5,32] q, float[2,7,16] k, float[2,7,12] v"
HEADS = "q_num_heads = 4, kv_num_heads = 2"
CASES = {
    "plain": (STACKED, "[2,4,5,6]", "", ""),
    "scaled": (STACKED, "[2,4,5,6]", "scale = 0.3", ""),
    "capped": (STACKED, "[2,4,5,6]", "softcap = 2.0", ""),
    "causal": (STACKED, "[2,4,5,6]", "is_causal = 1", ""),
    "shared keys": (SHARED, "[2,4,5,6]", "", ""),
    "heads side by side": (FLAT, "[2,5,24]", HEADS, ""),
    "mask for all": (STACKED, "[2,4,5,6]", "", "float[5,7] m"),
    "mask of keys": (STACKED, "[2,4,5,6]", "", "bool[2,1,1,7] m"),
    "mask of heads, shared keys": (SHARED, "[2,4,5,6]", "", "bool[2,4,5,7] m"),
    "mask of heads, all rows": (SHARED, "[2,4,5,6]", "", "float[2,4,1,7] m"),
    "mask for all, shared keys": (SHARED, "[2,4,5,6]", "", "bool[5,7] m"),
    "mask of keys, side by side": (FLAT, "[2,5,24]", HEADS, "bool[2,1,1,7] m"),
    "mask and causal": (FLAT, "[2,5,24]", f"{HEADS}, is_causal = 1", "float[2,1,5,7] m"),
}  # fmt: skip


def _given(model: ir.Model) -> dict[str, np.ndarray]:
    """Return random inputs; of a boolean mask, the first row allows nothing."""
    found: dict[str, np.ndarray] = {}
    for number, value in enumerate(model.graph.inputs):
        assert value.shape is not None
        sizes = [int(size) for size in value.shape.numpy()]
        array = normal(*sizes, seed=number)
        if value.dtype == ir.DataType.BOOL:
            array = array > -0.5
            array.reshape(-1, sizes[-1])[0] = False
        if value.dtype == ir.DataType.INT64:
            array = np.arange(array.size).reshape(sizes) % 9
        found[str(value.name)] = array
    return found


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, target: str) -> None:
    inputs, result, attributes, mask = CASES[name]
    declared = f"{inputs}, {mask}" if mask else inputs
    text = f"Attention<{attributes}>" if attributes else "Attention"
    model = read(
        f"({declared}) => (float{result} y) {{ y = {text}(q, k, v{', m' if mask else ''}) }}",
        opset=23,
    )
    given = _given(model)
    assert not refusals(simplify(model).model)
    got = run_native(model, given, target, "fp32")["y"]
    exact = interpret(model, given, ["y"], wide=True)["y"]
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("data", "attributes", "angles"),
    [
        ("float[2,3,5,8] x", "", "float[2,5,4] c, float[2,5,4] s"),
        ("float[2,3,5,8] x", "interleaved = 1", "float[2,5,4] c, float[2,5,4] s"),
        ("float[2,5,24] x", "num_heads = 3", "float[2,5,4] c, float[2,5,4] s"),
        ("float[2,5,24] x", "num_heads = 3, rotary_embedding_dim = 4",
         "float[9,2] c, float[9,2] s, int64[2,5] p"),
        ("float[2,5,24] x", "num_heads = 3, rotary_embedding_dim = 4, interleaved = 1",
         "float[9,2] c, float[9,2] s, int64[2,5] p"),
    ],
)  # fmt: skip
def test_rotary_embedding(data: str, attributes: str, angles: str) -> None:
    shape = data.split()[0]
    text = f"RotaryEmbedding<{attributes}>" if attributes else "RotaryEmbedding"
    places = ", p" if " p" in angles else ""
    model = read(f"({data}, {angles}) => ({shape} y) {{ y = {text}(x, c, s{places}) }}", opset=23)
    given = _given(model)
    assert not refusals(simplify(model).model)
    got = run_native(model, given, "cpu", "fp32")["y"]
    exact = interpret(model, given, ["y"], wide=True)["y"]
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-6)


def test_a_cache_is_refused() -> None:
    model = read(
        """(float[1,2,1,8] q, float[1,2,1,8] k, float[1,2,1,8] v, float[1,2,3,8] pk,
            float[1,2,3,8] pv) => (float[1,2,1,8] y) { y = Attention(q, k, v, , pk, pv) }""",
        opset=23,
    )
    assert "cache" in str(refusals(model))
