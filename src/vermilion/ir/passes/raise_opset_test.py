import numpy as np
import pytest

from vermilion.ir.opset import OPSET, opset_of
from vermilion.ir.passes.contract_test import operators, parse, reasons, run, weight
from vermilion.ir.passes.raise_opset import raise_opset
from vermilion.ir.passes.report import run_pass


@pytest.mark.parametrize("opset", [7, 9, 11, 13, 16])
def test_fires_and_keeps_weights_and_names(opset) -> None:
    model = parse(
        "(float[1,3,8,8] x, float[64,3,3,3] w) => (float[1,64,6,6] y) "
        "{ a = Conv(x, w) y = Relu(a) }",
        opset=opset,
        ir_version=4,
        w=weight(64, 3, 3, 3),
    )
    model.graph[0].name = "first"
    tensor = model.graph.initializers["w"].const_value
    work, step = run(raise_opset, model)
    assert step.fired == OPSET - opset
    assert opset_of(work) == OPSET
    assert work.graph[0].name == "first"
    assert work.graph.initializers["w"].const_value is tensor
    assert [value.name for value in work.graph.inputs] == ["x"]
    assert work.ir_version >= 8


def test_attributes_become_inputs() -> None:
    model = parse(
        """(float[1,3,8] x) => (float[1,3,2] y) {
            a = Clip<min = 0.0, max = 6.0>(x)
            b = Slice<axes = [2], starts = [1], ends = [3]>(a)
            c = Unsqueeze<axes = [0]>(b)
            y = Squeeze<axes = [0]>(c)
        }""",
        opset=9,
    )
    work, _ = run(raise_opset, model)
    assert operators(work).count("Constant") >= 4


def test_softmax_over_the_last_axis_stays_one_node() -> None:
    model = parse("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 2>(x) }", opset=11)
    work, _ = run(raise_opset, model)
    assert operators(work) == ["Softmax"]
    model = parse("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 1>(x) }", opset=11)
    work, _ = run(raise_opset, model)
    assert len(operators(work)) > 1


def test_leaves_newer_models() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }", opset=20, ir_version=9)
    _, step = run(raise_opset, model)
    assert (step.fired, step.refusals) == (0, ())


def test_refuses_with_a_reason_and_a_hint() -> None:
    body = """(float[2] x, bool c) => (float[2] y) {
        y = If (c) <
            then_branch = a () => (float[2] t) { t = Abs(x) },
            else_branch = b () => (float[2] e) { e = Neg(x) }
        >
    }"""
    step = run_pass(raise_opset, parse(body, opset=11))
    assert reasons(step) == ["it has If nodes, whose bodies the converter does not follow"]
    assert step.refusals[0][1].hint == "export it with opset 17"
    foreign = "(float[2] x) => (float[2] y) { y = com.microsoft.Gelu(x) }"
    step = run_pass(raise_opset, parse(foreign, opset=11, domains=', "com.microsoft": 1'))
    assert reasons(step) == ["it has nodes of the domain `com.microsoft`"]


def test_refuses_what_onnx_has_no_rule_for() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = NoSuchOperator(x) }", opset=11)
    step = run_pass(raise_opset, model)
    assert step.fired == 0
    assert "onnx cannot convert it from opset 11" in reasons(step)[0]
    assert opset_of(model) == 11


def test_inputs_with_defaults_survive() -> None:
    model = parse(
        "(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", opset=11, w=weight(2)
    )
    model.graph.inputs.append(model.graph.initializers["w"])
    work, _ = run(raise_opset, model)
    assert [value.name for value in work.graph.inputs] == ["x", "w"]
    assert np.array_equal(work.graph.initializers["w"].const_value.numpy(), weight(2))
