from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.passes.contract_test import operators, parse, reasons, run, weight
from vermilion.ir.passes.weights import deduplicate_weights, freeze_defaults, lift_constants


@pytest.mark.parametrize(
    "constant",
    [
        "c = Constant<value = float[2] {1.0, 2.0}>()",
        "c = Constant<value_float = 2.5>()",
        "c = Constant<value_floats = [1.0, 2.0]>()",
        "i = Constant<value_int = 3>() c = Cast<to = 1>(i)",
        "i = Constant<value_ints = [3, 4]>() c = Cast<to = 1>(i)",
    ],
)
def test_fires_for_each_form(constant) -> None:
    model = parse(f"(float[2] x) => (float[2] y) {{ {constant} y = Add(x, c) }}")
    work, step = run(lift_constants, model)
    assert step.fired == 1
    assert "Constant" not in operators(work)


def test_strings_are_lifted() -> None:
    model = parse(
        """(float[2] x) => (bool[1] y, float[2] z) {
            a = Constant<value_strings = ["a"]>()
            b = Constant<value_string = "b">()
            y = Equal(a, b)
            z = Abs(x)
        }""",
        opset=19,
        ir_version=9,
    )
    _, step = run(lift_constants, model)
    assert step.fired == 2


def test_a_constant_that_is_an_output_is_given_by_a_node() -> None:
    model = parse("(float[1] x) => (float[1] y) { y = Constant<value_floats = [1.0]>() }")
    work, step = run(lift_constants, model)
    assert step.fired == 1
    assert operators(work) == ["Identity"]
    assert [value.name for value in work.graph.outputs] == ["y"]


def test_refuses_a_constant_that_is_the_output_of_a_body() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[1] y) {
            y = If (c) <
                then_branch = a () => (float[1] t) { t = Constant<value_floats = [1.0]>() },
                else_branch = b () => (float[1] e) { e = Constant<value_floats = [2.0]>() }
            >
        }"""
    )
    _, step = run(lift_constants, model)
    assert reasons(step) == ["the constant is an output of its graph"] * 2


def test_lifts_inside_bodies() -> None:
    model = parse(
        """(float[2] x, bool c) => (float[2] y) {
            y = If (c) <
                then_branch = a () => (float[2] t) {
                    one = Constant<value_float = 1.0>()
                    t = Add(x, one)
                },
                else_branch = b () => (float[2] e) { e = Abs(x) }
            >
        }"""
    )
    work, step = run(lift_constants, model)
    assert step.fired == 1
    body = work.graph[0].attributes["then_branch"].as_graph()
    assert [node.op_type for node in body] == ["Add"]


def test_fires_on_inputs_with_a_default() -> None:
    model = parse("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }")
    value = model.graph.inputs[1]
    value.const_value = ir.tensor(weight(2))
    model.graph.register_initializer(value)
    work, step = run(freeze_defaults, model)
    assert step.fired == 1
    assert [value.name for value in work.graph.inputs] == ["x"]
    assert list(work.graph.initializers) == ["w"]


def test_leaves_required_inputs() -> None:
    _, step = run(freeze_defaults, parse("(float[2] x) => (float[2] y) { y = Abs(x) }"))
    assert step.fired == 0


TEXT = """(float[1000] x, float[1000] a, float[1000] b) => (float[1000] y) {
    c = Add(x, a)
    y = Mul(c, b)
}"""


def test_fires_on_equal_weights() -> None:
    work, step = run(deduplicate_weights, parse(TEXT, a=weight(1000), b=weight(1000)))
    assert step.fired == 1
    assert list(work.graph.initializers) == ["a"]


def test_one_bit_apart_is_apart() -> None:
    other = weight(1000)
    other[501] = np.nextafter(other[501], np.float32(9))
    _, step = run(deduplicate_weights, parse(TEXT, a=weight(1000), b=other))
    assert step.fired == 0


def test_minus_zero_and_other_types_stay_apart() -> None:
    zeros = np.zeros(1000, np.float32)
    _, step = run(deduplicate_weights, parse(TEXT, a=zeros, b=-zeros))
    assert step.fired == 0
    text = "(float[2] x, float[2] a, int32[2] b) => (float[2] y, int32[2] z) "
    text += "{ y = Add(x, a) z = Neg(b) }"
    _, step = run(
        deduplicate_weights, parse(text, a=np.zeros(2, np.float32), b=np.zeros(2, np.int32))
    )
    assert step.fired == 0


def test_empty_and_scalar_weights() -> None:
    text = "(float x, float a, float b, float[0] c, float[0] d) => (float y, float[0] z) "
    text += "{ e = Add(x, a) y = Add(e, b) z = Add(c, d) }"
    empty, one = np.zeros(0, np.float32), np.float32(1)
    _, step = run(deduplicate_weights, parse(text, a=one, b=one, c=empty, d=empty))
    assert step.fired == 2


def test_refuses_a_weight_that_is_an_output() -> None:
    model = parse(
        "(float[2] x, float[2] a, float[2] b) => (float[2] y) { c = Add(x, a) y = Add(c, b) }",
        a=weight(2),
        b=weight(2),
    )
    model.graph.outputs.append(model.graph.initializers["b"])
    work, step = run(deduplicate_weights, model)
    assert reasons(step) == ["it is an output of the model"]
    assert len(work.graph.initializers) == 2
