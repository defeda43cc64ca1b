from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from vermilion.errors import OptionError, UnsupportedError
from vermilion.quantize.calibrate import tensor_facts
from vermilion.quantize.plan import Plan, make_plan

WEIGHTS = (
    "<float[4,3,1,1] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = {1,2,3,4}, float[1] c = {2},"
    " int64[2] flat = {1,-1}, float nothing = {0}, float six = {6}, float one = {1}>"
)


def plan_of(body: str, *, exclude: tuple[str, ...] = (), result: str = "float[?,?,?,?] y") -> Plan:
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,3,4,4] x) => ({result}) '
        f"{WEIGHTS} {{ {body} }}"
    )
    proto = onnx.parser.parse_model(text.replace("float[?,?,?,?]", "float[a,b,c,d]"))
    model = ir.from_proto(proto)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.NameFixPass()(model)
    facts = tensor_facts(model, {"x": np.zeros((1, 3, 4, 4), np.float32)})
    return make_plan(model, {name: fact.data_type for name, fact in facts.items()}, exclude)


def rounded(plan: Plan) -> list[str]:
    return [str(value.name) for value in plan.activations]


def test_inputs_outputs_and_borders_are_rounded_and_bias_is_a_bias() -> None:
    plan = plan_of("h = Conv(x, w, b) \n y = Tanh(h)")
    assert rounded(plan) == ["x", "h", "y"]
    assert [v.name for v in plan.weights] == ["w"]
    assert [v.name for v in plan.biases] == ["b"]


@pytest.mark.parametrize(
    "activation",
    ["Relu(h)", "LeakyRelu<alpha=0.1>(h)", "Clip(h, nothing, six)", "Clip(h, nothing, one)"],
)
def test_nothing_is_rounded_before_an_activation_that_alone_reads(activation: str) -> None:
    plan = plan_of(f"h = Conv(x, w, b) \n y = {activation}")
    assert rounded(plan) == ["x", "y"]
    assert plan.steps[0].writes == "y"
    assert plan.steps[0].activation == activation.split("(")[0].split("<")[0]


@pytest.mark.parametrize(
    "body",
    [
        "h = Conv(x, w, b) \n y = Clip(h, one, six)",
        "h = Conv(x, w, b) \n r = Relu(h) \n y = Add(h, r)",
        "h = Mul(x, c) \n y = Relu(h)",
    ],
)
def test_it_is_rounded_before_any_other(body: str) -> None:
    assert "h" in rounded(plan_of(body))


def test_moved_data_shares_a_scale_and_is_not_observed() -> None:
    plan = plan_of(
        "h = Conv(x, w, b) \n t = Transpose<perm=[0,2,3,1]>(h) \n z = Reshape(t, flat)"
        "\n y = Softmax(z)",
        result="float[a,b] y",
    )
    assert plan.scales["h"] == plan.scales["t"] == plan.scales["z"] == "h"
    assert plan.observed == ("x", "h", "y")


@pytest.mark.parametrize(
    "body",
    [
        "h = Conv(x, w, b) \n k = Tanh(h) \n y = Concat<axis=1>(h, k)",
        "h = Conv(x, w, b) \n y = AveragePool<kernel_shape=[2,2]>(h)",
        "h = Conv(x, w, b) \n y = MaxPool<kernel_shape=[2,2]>(h)",
    ],
)
def test_joined_and_pooled_data_shares_a_scale_and_is_observed(body: str) -> None:
    plan = plan_of(body)
    assert plan.scales["y"] == plan.scales["h"]
    assert {"h", "y"} <= set(plan.observed)


def test_operators_outside_the_table_stay_in_float() -> None:
    plan = plan_of("h = Conv(x, w, b) \n s = Sigmoid(h) \n y = Sin(s)")
    assert rounded(plan) == ["x", "h"]


@pytest.mark.parametrize(
    "body", ["h = Add(x, c) \n y = Div(c, h)", "h = Add(x, c) \n y = Pow(h, c)"]
)
def test_what_eight_bits_cannot_hold_stays_in_float(body: str) -> None:
    assert "y" not in rounded(plan_of(body))


def test_division_by_a_constant_is_a_scale() -> None:
    assert rounded(plan_of("y = Div(x, c)")) == ["x", "y"]


def test_moves_between_float_operators_are_not_rounded() -> None:
    plan = plan_of(
        "h = Conv(x, w, b) \n s = Sigmoid(h) \n t = Transpose<perm=[0,2,3,1]>(s) \n y = Sin(t)"
    )
    assert rounded(plan) == ["x", "h"]


def test_integers_and_shapes_are_left_alone() -> None:
    plan = plan_of(
        "h = Conv(x, w, b) \n n = Shape(h) \n m = Add(n, n) \n k = Sub(m, n) \n y = Reshape(h, k)"
    )
    assert {node.op_type for node in plan.nodes} == {"Conv", "Reshape"}


def test_constant_with_infinity_keeps_its_node_in_float() -> None:
    # What attention masks are made of.
    plan = plan_of("h = Conv(x, w) \n m = Constant<value_float=-inf>() \n y = Add(h, m)")
    assert {node.op_type for node in plan.nodes} == {"Conv"}


def test_excluded_nodes_stay_in_float() -> None:
    body = "[first] h = Conv(x, w, b) \n [second] y = Mul(h, c)"
    assert rounded(plan_of(body)) == ["x", "h", "y"]
    assert rounded(plan_of(body, exclude=("first",))) == ["h", "y"]
    with pytest.raises(UnsupportedError, match="no operator"):
        plan_of(body, exclude=("*",))


def test_unknown_excluded_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="`frist`") as caught:
        plan_of("[first] y = Conv(x, w, b)", exclude=("frist",))
    assert "`first`" in caught.value.hint
