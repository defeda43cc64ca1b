from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.literal.run import run_literally
from vermilion.proof.cut import cut_at, node_names, piece_of
from vermilion.proof.judge import Question, judge

HEAD = '<ir_version: 9, opset_import: ["" : 17]>\n'


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(HEAD + text)))


def question(text: str, inputs: dict[str, Any], found: dict[str, Any], **how: Any) -> Question:
    graph = model(text)
    expected = run_literally(graph, inputs).outputs
    return Question(graph, inputs, expected, {**expected, **found}, **how)


# The difference of two numbers that are nearly equal: all rounding.
CANCELLED = "g (float[4,32] x, float[4,32] z) => (float[4,32] y) { s = Mul (x, x) d = Mul (x, z) y = Sub (s, d) }"  # noqa: E501


def cancelled(error: float) -> bool:
    random = np.random.default_rng(0)
    x = random.standard_normal((4, 32)).astype(np.float32)
    z = (x * np.float32(1 + 1e-6)).astype(np.float32)
    asked = question(CANCELLED, {"x": x, "z": z}, {})
    right = asked.expected["y"]
    noise = error * np.abs(x * x) * random.standard_normal((4, 32))
    moved = Question(asked.model, asked.inputs, asked.expected, {"y": (right + noise).astype("f4")})
    return not judge(moved).wrong


def test_an_ill_conditioned_model_may_be_off_by_what_a_rounding_does_and_no_more() -> None:
    assert cancelled(1e-7)
    assert not cancelled(1e-4)


def test_a_class_is_judged_by_the_scores_that_decide_it() -> None:
    text = (
        "g (float[3,5] x) => (int64[3] y)"
        " { s = Add (x, x) y = ArgMax <axis = 1, keepdims = 0> (s) }"
    )
    x = np.zeros((3, 5), np.float32)
    x[:, 1], x[:, 4] = 1.0, 1.0
    x[2, 4] = 1.1
    tied, wrong = np.array([4, 1, 4]), np.array([4, 1, 1])
    assert not judge(question(text, {"x": x}, {"y": tied})).wrong
    assert judge(question(text, {"x": x}, {"y": wrong})).wrong
    assert judge(question(text, {"x": x}, {"y": np.array([7, 1, 4])})).wrong
    near = x.copy()
    near[2, 4] = 1.0 + 2.0**-8
    assert judge(question(text, {"x": near}, {"y": wrong})).wrong
    assert not judge(question(text, {"x": near}, {"y": wrong}, form="bf16")).wrong


def test_of_scores_that_are_known_to_the_last_bit_the_first_counts() -> None:
    text = "g (float[1,5] x) => (int64[1] y) { y = ArgMax <axis = 1, keepdims = 0> (x) }"
    x = np.array([[0, 1, 0, 0, 1]], np.float32)
    assert judge(question(text, {"x": x}, {"y": np.array([4])})).wrong
    assert not judge(question(text, {"x": x}, {"y": np.array([4])}, form="bf16")).wrong


QUANTIZED = """g (float[64] x, float s, uint8 z) => (uint8[64] y) { a = Mul (x, s) y = QuantizeLinear (a, s, z) }"""  # noqa: E501


@pytest.mark.parametrize(("step", "is_right"), [(1, True), (2, False)])
def test_a_code_of_a_quantizer_may_be_either_at_a_tie(step: int, is_right: bool) -> None:
    inputs = {
        "x": (np.arange(64) + 0.5).astype(np.float32), "s": np.array(0.3, np.float32),
        "z": np.array(3, np.uint8),
    }  # fmt: skip
    asked = question(QUANTIZED, inputs, {})
    right = asked.expected["y"]
    odd = np.round(inputs["x"]).astype(np.int64) + 3
    other = (2 * (np.arange(64) + 3) + 1 - odd).astype(np.int64)
    moved = np.where(np.arange(64) == 9, other if step == 1 else other + 2, right)
    answer = judge(Question(asked.model, inputs, asked.expected, {"y": moved.astype(np.uint8)}))
    assert (not answer.wrong) == is_right
    shifted = (right.astype(np.int64) + 1).astype(np.uint8)
    x = {**inputs, "x": np.arange(64, dtype=np.float32)}
    plain = question(QUANTIZED, x, {})
    assert judge(Question(plain.model, x, plain.expected, {"y": shifted})).wrong


FOUND_IN_THE_RUN = """g (float[64] x, float s) => (uint8[64] y, float t, uint8 z) { a = Mul (x, s) y, t, z = DynamicQuantizeLinear (a) }"""  # noqa: E501


def judged(low: float, high: float, **moved: Any) -> bool:
    """Say whether codes of 62 halves between two ends are accepted, with some of them moved."""
    x = np.concatenate([[low, high], np.arange(62) + 0.5]).astype(np.float32)
    asked = question(FOUND_IN_THE_RUN, {"x": x, "s": np.array(0.3, np.float32)}, {})
    found = {**asked.expected, **{name: move(asked.expected[name]) for name, move in moved.items()}}
    return not judge(replace(asked, found=found)).wrong


def test_codes_of_a_range_found_in_the_run_may_be_either_at_a_tie() -> None:
    halves = np.arange(62) + 0.5

    def other(right: np.ndarray, places: int, step: int = 1) -> np.ndarray:
        """Move the first codes of halves to the other side, `step` numbers further."""
        wide = right.astype(np.int64)
        up = np.where(wide[2:] < halves, step, -step)
        wide[2 : 2 + places] += up[:places]
        return wide.astype(np.uint8)

    assert judged(0.0, 255.0)
    assert judged(0.0, 255.0, y=lambda y: other(y, 62))
    assert not judged(0.0, 255.0, y=lambda y: other(y, 1, step=2))
    assert not judged(0.0, 255.0, y=lambda y: np.where(np.arange(64) == 1, y - 1, y))
    assert not judged(0.0, 255.0, z=lambda z: z + np.uint8(1))
    assert not judged(0.0, 255.0, t=lambda t: t * np.float32(1.001))


def test_a_zero_point_that_is_a_tie_moves_all_codes_by_one() -> None:
    assert judged(-64.5, 190.5, y=lambda y: y + np.uint8(1), z=lambda z: z + np.uint8(1))
    assert not judged(-64.5, 190.5, y=lambda y: y + np.uint8(2))
    assert not judged(-64.25, 190.75, y=lambda y: y + np.uint8(1))


WHOLE_PRODUCTS = {
    "Conv": (
        "g (uint8[1,2,3,3] x) => (uint8[1,4,3,3] y)"
        " <float half = {0.5}, uint8 z = {9}, int8 n = {0}, int32[4] b = {1, 0, 3, 2},"
        " int8[4,2,1,1] w = {1, 2, 3, 4, 5, 6, -7, 1}>"
        " { y = QLinearConv (x, half, z, w, half, n, half, z, b) }",
        (1, 2, 3, 3),
    ),
    "MatMul": (
        "g (uint8[9,2] x) => (uint8[9,4] y)"
        " <float half = {0.5}, uint8 z = {9}, int8 n = {0},"
        " int8[2,4] w = {1, 2, 3, 4, 5, 6, -7, 1}>"
        " { y = QLinearMatMul (x, half, z, w, half, n, half, z) }",
        (9, 2),
    ),
}


@pytest.mark.parametrize("kind", WHOLE_PRODUCTS)
def test_a_product_of_integers_may_round_either_way_at_a_tie_alone(kind: str) -> None:
    text, shape = WHOLE_PRODUCTS[kind]
    inputs = {"x": np.arange(18, dtype=np.uint8).reshape(shape)}
    asked = question(text, inputs, {})
    right = asked.expected["y"]
    answers = []
    for place in range(right.size):  # half of the sums are odd: half of a step is over
        for step in (-1, 1):
            moved = right.copy()
            moved.flat[place] = max(0, int(right.flat[place]) + step)
            found = Question(asked.model, inputs, asked.expected, {"y": moved})
            answers.append(not judge(found).wrong)
    assert 0.1 < np.mean(answers) < 0.4
    assert judge(Question(asked.model, inputs, asked.expected, {"y": right + 1})).wrong


ONE_PIXEL = """g (float[1,4,1,1] x, float[4] s, float[4] b) => (float[1,4,1,1] y) { y = InstanceNormalization (x, s, b) }"""  # noqa: E501


def test_float64_decides_where_the_literal_run_is_further_off() -> None:
    inputs = {
        "x": np.array([1e6, -3e5, 7e4, 1.0], np.float32).reshape(1, 4, 1, 1),
        "s": np.full(4, 3.0, np.float32), "b": np.array([0.1, 0.2, 0.3, 0.4], np.float32),
    }  # fmt: skip
    exact = inputs["b"].reshape(1, 4, 1, 1)
    asked = question(ONE_PIXEL, inputs, {})
    off = Question(asked.model, inputs, {"y": exact + 0.25}, {"y": exact})
    found = judge(off)
    assert not found.wrong
    assert found.accepted == {"y": "float64"}
    assert judge(Question(asked.model, inputs, {"y": exact}, {"y": exact + 0.25})).wrong


def test_a_quantizer_elsewhere_is_no_matter_of_an_output() -> None:
    """ONNX Runtime's Sigmoid is off where it is tiny: float64 decides, beside a quantizer too."""
    text = """g (float[64] x) => (float[64] y, uint8[64] q)
      <float s = {0.5}, uint8 z = {0}> { y = Sigmoid (x) q = QuantizeLinear (x, s, z) }"""
    x = np.linspace(-30.0, -20.0, 64, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))
    asked = question(text, {"x": x}, {"y": (exact / (1 + exact)).astype(np.float32)})
    assert not judge(asked).wrong
    off = {**asked.found, "y": asked.found["y"] * np.float32(9)}
    assert judge(replace(asked, found=off)).wrong


CHAIN = """g (float[2,8] x, float[8,8] w) => (float[2,8] y) {
  [one] a = MatMul (x, w) [two] b = Relu (a) [three] c = MatMul (b, w) [four] y = Neg (c) }"""


def chain() -> tuple[ir.Model, dict[str, Any]]:
    random = np.random.default_rng(3)
    inputs = {"x": random.standard_normal((2, 8)), "w": random.standard_normal((8, 8))}
    return model(CHAIN), {name: array.astype(np.float32) for name, array in inputs.items()}


def test_a_cut_judges_each_piece_on_what_was_computed_before_it() -> None:
    graph, inputs = chain()
    cut = cut_at(graph, ["b", "y"])
    b = np.maximum(inputs["x"] @ inputs["w"], 0)
    wrong_b = b + 1
    y = -(wrong_b @ inputs["w"])
    found = {"b": wrong_b, "y": y}
    given = cut.inputs(inputs, found)
    expected = run_literally(cut.model, given).outputs
    answer = judge(Question(cut.model, given, expected, found), cut)
    assert [check.name for check in answer.wrong] == ["b"], "y is right for the b that it got"
    assert node_names(piece_of(cut, "b")) == ("`one` (MatMul)", "`two` (Relu)")
    assert node_names(piece_of(cut, "y")) == ("`three` (MatMul)", "`four` (Neg)")
    assert [str(v.name) for v in graph.graph.outputs] == ["y"], "the model stays as it is"


@pytest.mark.parametrize("terms", [200, 4608])
def test_a_long_sum_that_cancels_may_be_added_up_in_any_order(terms: int) -> None:
    random = np.random.default_rng(0)
    x = (1.0 + 0.01 * random.standard_normal((8, terms))).astype(np.float32)
    w = np.abs(random.standard_normal((terms, 64))).astype(np.float32)
    b = -w.sum(axis=0, dtype=np.float64).astype(np.float32)
    text = f"g (float[8,{terms}] x, float[{terms},64] w, float[64] b) => (float[8,64] y) {{ p = MatMul (x, w) y = Add (p, b) }}"  # noqa: E501
    asked = question(text, {"x": x, "w": w, "b": b}, {})
    one_by_one = np.cumsum(x[:, :, None] * w[None], axis=1, dtype=np.float32)[:, -1] + b
    one_less = one_by_one.copy()
    one_less[3, 5] -= x[3, 7] * w[7, 5]
    cut = cut_at(asked.model, ["y"])
    assert not judge(replace(asked, found={"y": one_by_one}), cut).wrong
    assert judge(replace(asked, found={"y": one_less}), cut).wrong


def test_float64_is_asked_for_a_while_and_then_noise_decides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = question(
        "g (float[64] x) => (float[64] y) { y = Sin (x) }", {"x": np.ones(64, "f4")}, {}
    )
    moved = replace(asked, found={"y": asked.expected["y"] + np.float32(1e-3)})
    cut = cut_at(asked.model, ["y"])
    assert judge(moved, cut).checks[0].spread is None
    monkeypatch.setattr("vermilion.proof.judge._ARBITRATION_SECONDS", -1.0)
    late = judge(moved, cut)
    assert late.wrong
    assert late.checks[0].spread is not None
