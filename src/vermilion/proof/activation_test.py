"""Numbers that only a rounding away become others: codes in the middle of a piece, cut-off sums."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.literal.run import run_literally
from vermilion.proof.activation import with_exact_activation
from vermilion.proof.cut import cut_at
from vermilion.proof.judge import Answer, Question, judge

HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'
Array = np.ndarray[Any, Any]


def judged(text: str, inputs: dict[str, Array], found: Array, form: Any = "fp32") -> Answer:
    proto = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEAD + text))
    graph = ir.from_proto(proto)
    expected = run_literally(graph, inputs).outputs
    return judge(Question(graph, inputs, expected, {"y": found}, form), cut_at(graph, ["y"]))


# The code of the first quantizer is seen by nobody; one of it is four of the second.
INNER = """g (float[4,64] x, float[64,64] w) => (uint8[4,64] y)
  <float s = {0.5}, uint8 z = {128}, float t = {0.125}, uint8 u = {0}> {
  p = MatMul (x, w) q = QuantizeLinear (p, s, z) d = DequantizeLinear (q, s, z)
  r = Relu (d) y = QuantizeLinear (r, t, u) }"""


def codes(sums: Array) -> Array:
    kept = np.maximum(np.clip(np.round(sums / 0.5), -128, 127) * 0.5, 0)
    return np.clip(np.round(kept / 0.125), 0, 255).astype(np.uint8)


def test_a_code_in_the_middle_may_be_either_at_a_tie_and_nowhere_else() -> None:
    random = np.random.default_rng(1)
    x = random.integers(-3, 4, (4, 64)).astype(np.float32)
    w = (random.integers(-3, 4, (64, 64)) / 4.0).astype(np.float32)
    inputs = {"x": x, "w": w}
    sums = (x.astype(np.float64) @ w)[...]
    assert np.mean(sums % 0.5 == 0.25) > 0.2, "half of them lie between two steps"
    for side in (1e-9, -1e-9):
        assert not judged(INNER, inputs, codes(sums + side)).wrong
    mixed = codes(sums + random.choice([1e-9, -1e-9], sums.shape))
    assert not judged(INNER, inputs, mixed).wrong
    clear = np.argwhere((sums % 0.5 == 0) & (sums > 1) & (sums < 20))[0]
    moved = codes(sums)
    moved[tuple(clear)] += 4
    assert judged(INNER, inputs, moved).wrong, "there is no tie"


def test_a_sum_that_cancels_is_known_to_the_roundings_of_its_terms() -> None:
    x = np.full((4, 64), 60.0, np.float32)
    w = np.tile(np.array([[1.0], [-1.0]], np.float32), (32, 64))
    x[:, 0] += 0.25 + 2.0**-16
    inputs = {"x": x, "w": w}
    sums = x.astype(np.float64) @ w
    assert np.allclose(sums, 0.25 + 2.0**-16)
    assert not judged(INNER, inputs, codes(sums - 2.0**-15)).wrong
    assert judged(INNER, inputs, codes(sums + 0.5)).wrong


def test_noise_is_put_into_models_with_constants_of_no_dimensions() -> None:
    """It was left out: numpy makes a number of an array without dimensions."""
    text = """g (float[4,8] x) => (uint8[4,8] y)
      <float h = {0.5}, float s = {0.5}, uint8 z = {0}, float t = {0.125}> {
      a = Mul (x, h) q = QuantizeLinear (a, s, z) d = DequantizeLinear (q, s, z)
      b = Mul (d, h) y = QuantizeLinear (b, t, z) }"""
    x = (np.arange(32, dtype=np.float32) + 0.5).reshape(4, 8)
    either = np.floor(x.astype(np.float64)) + 1.0
    found = np.round(either * 0.5 * 0.5 / 0.125).astype(np.uint8)
    assert not judged(text, {"x": x}, found).wrong


LIMITED = """g (float[1,8,1,64] x, float[16,8,1,1] w, float[16] b) => (float[1,16,1,64] y)
  <float low = {0.0}, float high = {6.0}> { p = Conv (x, w, b) g = Sigmoid (p) y = LIMIT }"""
FUNCTIONS = {
    "Clip (p, low, high)": lambda p: np.clip(p, 0, 6),
    "Relu (p)": lambda p: np.maximum(p, 0),
    "Sigmoid (p)": lambda p: 0.5 + 0.5 * np.tanh(0.5 * p),
    "Tanh (p)": np.tanh,
    "Mul (p, g)": lambda p: p * (0.5 + 0.5 * np.tanh(0.5 * p)),
}


@pytest.mark.parametrize("scale", [1.0, 300.0])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_a_function_leaves_is_judged_by_the_numbers_before_it(
    function: str, scale: float
) -> None:
    random = np.random.default_rng(2)
    rounded = lambda a: a.astype(ml_dtypes.bfloat16).astype(np.float32)  # noqa: E731
    x = rounded(random.standard_normal((1, 8, 1, 64)).astype(np.float32) * np.float32(scale))
    w = random.standard_normal((16, 8, 1, 1)).astype(np.float32)
    b = np.linspace(-12, 4, 16, dtype=np.float32) * np.float32(scale)
    inputs = {"x": x, "w": w, "b": b}
    text = LIMITED.replace("LIMIT", function)

    def program(weights: Array) -> Array:
        sums = np.einsum("nchw,oc->nohw", x, weights[:, :, 0, 0]) + b.reshape(1, -1, 1, 1)
        return rounded(FUNCTIONS[function](sums).astype(np.float32))

    assert not judged(text, inputs, program(rounded(w)), "bf16").wrong
    dropped = w.copy()
    dropped[13, np.argmax(np.abs(w[13]))] = 0.0
    assert judged(text, inputs, program(dropped), "bf16").wrong, "a tap is left out"
    assert judged(text, inputs, np.roll(program(w), 1, axis=3), "bf16").wrong
    nothing = np.full_like(program(w), np.nan)
    assert judged(text, inputs, nothing, "bf16").wrong


def test_what_noise_explains_is_no_fault_of_the_literal_run() -> None:
    random = np.random.default_rng(4)
    x = random.standard_normal((1, 8, 1, 64)).astype(np.float32) * np.float32(300)
    w = random.standard_normal((16, 8, 1, 1)).astype(np.float32)
    inputs = {"x": x, "w": w, "b": np.zeros(16, np.float32)}
    narrow = w.astype(ml_dtypes.bfloat16).astype(np.float32)
    sums = np.einsum("nchw,oc->nohw", x, narrow[:, :, 0, 0])
    text = LIMITED.replace("LIMIT", "Sigmoid (p)")
    answer = judged(text, inputs, FUNCTIONS["Sigmoid (p)"](sums).astype(np.float32), "bf16")
    assert not answer.wrong
    assert answer.accepted == {"y": "noise"}


@pytest.mark.parametrize(("activation", "is_computed"), [("Sigmoid", True), ("Relu", False)])
def test_float64_is_asked_where_it_gives_something_better(
    activation: str, is_computed: bool
) -> None:
    text = f"""g (float[4,8] x, float[8,8] w, float b) => (float[4,8] y)
      {{ p = MatMul (x, w) a = {activation} (p) y = Add (a, b) }}"""
    graph = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEAD + text)))
    inputs = {"x": np.ones((4, 8), np.float32), "w": np.eye(8, dtype=np.float32)}
    inputs["b"] = np.array(0.5, np.float32)
    expected = run_literally(graph, inputs).outputs["y"]
    assert (with_exact_activation(graph, "y", inputs, expected) is not None) == is_computed


@pytest.mark.parametrize("scale", [2.0**power for power in range(-8, 0)])
def test_noise_is_put_before_a_quantizer_of_any_power_of_two(scale: float) -> None:
    """At one of them both bounds of a tie are the same number, which was written twice."""
    text = f"""g (float[4,8] x, float h) => (uint8[4,8] y)
      <float s = {{{scale}}}, uint8 z = {{128}}> {{
      a = Mul (x, h) y = QuantizeLinear (a, s, z) }}"""
    x = np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)
    inputs = {"x": x, "h": np.array(scale, np.float32)}
    found = np.clip(np.round(x) + 128, 0, 255).astype(np.uint8)
    assert not judged(text, inputs, found).wrong
    found[0, 0] += 7
    assert judged(text, inputs, found).wrong
