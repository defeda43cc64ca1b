"""Weights stored as integers, and whoever reads them: native, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from native_text import differences, normal, read, refusals

SCALE, POINT = np.array(0.01, np.float32), np.array(2, np.int8)


def integers(*shape: int) -> np.ndarray:
    return np.asarray(normal(*shape, seed=5) * 40).astype(np.int8)


INPUTS = "(float[6,6] x, int8[6,6] w, float s, int8 z)"


def error(text: str, *shape: int, **weights: np.ndarray) -> float:
    """Return the largest error of a model of opset 21; only what it declares are its weights."""
    known = {"s": SCALE, "z": POINT, **weights}
    declared = text.partition("=>")[0]
    mine = {name: array for name, array in known.items() if f" {name}" in declared}
    model = read(text, 21, **mine)
    assert refusals(model) == []
    return max(differences(model, {"x": np.asarray(normal(*shape))}).values())


READERS = {
    "an output": "(float[6,6] y, float[6,6] d) { d = DequantizeLinear(w, s, z) y = Relu(x) }",
    "an output, after a function": "(float[6,6] y, float[6,6] v)"
    " { d = DequantizeLinear(w, s, z) v = Relu(d) y = Relu(x) }",
    "a sum": "(float[6,6] y) { d = DequantizeLinear(w, s, z) y = Add(x, d) }",
    "a sum and an output": "(float[6,6] y, float[6,6] d)"
    " { d = DequantizeLinear(w, s, z) y = Add(x, d) }",
    "a product of floats and an output": "(float[6,6] y, float[6,6] d)"
    " { d = DequantizeLinear(w, s, z) y = MatMul(x, d) }",
    "both sides of a product": "(float[6,6] y)"
    " { d = DequantizeLinear(w, s, z) p = MatMul(d, d) y = Add(p, x) }",
    "the left side": "(float[6,6] y) { d = DequantizeLinear(w, s, z) y = MatMul(d, x) }",
    "what moves it": "(float[6,6] y)"
    " { d = DequantizeLinear(w, s, z) t = Transpose(d) p = MatMul(t, d) y = Add(p, x) }",
    "one that quantizes it again": "(float[6,6] y, int8[6,6] q)"
    " { d = DequantizeLinear(w, s, z) q = QuantizeLinear(d, s, z) y = Relu(x) }",
}  # fmt: skip
QUANTIZED = (
    "q = QuantizeLinear(x, s, z) e = DequantizeLinear(q, s, z) d = DequantizeLinear(w, s, z)"
)
SHARED = {
    "a sum": "(float[6,6] y) { %s p = MatMul(e, d) y = Add(p, d) }",
    "an output": "(float[6,6] y, float[6,6] d) { %s y = MatMul(e, d) }",
    "a product of floats": "(float[6,6] y) { %s p = MatMul(e, d) o = MatMul(x, d) y = Add(p, o) }",
    "the left side of a product": "(float[6,6] y) { %s p = MatMul(e, d) y = MatMul(d, p) }",
    "all of them": "(float[6,6] y, float[6,6] d)"
    " { %s p = MatMul(e, d) t = Transpose(d) o = MatMul(t, p) y = Add(o, d) }",
}


@pytest.mark.parametrize("reader", READERS)
def test_weights_may_be_read_by(reader: str) -> None:
    assert error(f"{INPUTS} => {READERS[reader]}", 6, 6, w=integers(6, 6)) < 1e-6


@pytest.mark.parametrize("reader", SHARED)
def test_weights_of_an_integer_product_may_be_read_by(reader: str) -> None:
    text = f"{INPUTS} => {SHARED[reader] % QUANTIZED}"
    assert error(text, 6, 6, w=integers(6, 6)) < 1e-5


@pytest.mark.parametrize(("shape", "axis"), [("[4]", 0), ("[6,4]", 1), ("[4,3,3,3]", 0)])
def test_a_scale_for_each_channel(shape: str, axis: int) -> None:
    sizes = [int(n) for n in shape.strip("[]").split(",")]
    text = (
        f"(float{shape} x, int8{shape} w, float[4] c, int8[4] p) => (float{shape} y,"
        f" float{shape} d) {{ d = DequantizeLinear<axis = {axis}>(w, c, p) y = Relu(x) }}"
    )
    scales = np.linspace(0.01, 0.04, 4).astype(np.float32)
    assert error(text, *sizes, w=integers(*sizes), c=scales, p=np.arange(4).astype(np.int8)) < 1e-6


def test_a_scale_for_each_block() -> None:
    blocks = np.linspace(0.01, 0.04, 12).reshape(2, 6).astype(np.float32)
    text = (
        "(float[6,6] x, int8[6,6] w, float[2,6] b) => (float[6,6] y, float[6,6] d)"
        " { d = DequantizeLinear<axis = 0, block_size = 3>(w, b) y = Relu(x) }"
    )
    assert error(text, 6, 6, w=integers(6, 6), b=blocks) < 1e-6


def test_one_number() -> None:
    text = (
        "(float x, int8 w, float s, int8 z) => (float y, float d)"
        " { d = DequantizeLinear(w, s, z) y = Relu(x) }"
    )
    assert error(text, w=np.array(7, np.int8)) < 1e-6


def test_the_model_keeps_its_nodes() -> None:
    """Computing such weights beforehand would undo the format that the file was written in."""
    weights = {"w": integers(6, 6), "s": SCALE, "z": POINT}
    model = read(f"{INPUTS} => {READERS['an output']}", 21, **weights)
    assert "DequantizeLinear" in {node.op_type for node in model.graph}
