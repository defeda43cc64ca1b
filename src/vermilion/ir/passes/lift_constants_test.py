import pytest

from vermilion.ir.passes.contract_test import operators, parse, reasons, run
from vermilion.ir.passes.lift_constants import lift_constants


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
