"""Every row says what writes its operator; what no row writes is refused by name."""

from __future__ import annotations

from typing import get_args

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from float_graphs import run_native
from native_text import read, refusals
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.block_rounding import OPERATOR
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.lower.patterns.definitions import DEFINITIONS
from vermilion.codegen.lower.rules import PRODUCTS, RULES, Written, lowering_of, refusal
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.elementwise import ELEMENTWISE
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.expression import Constant
from vermilion.ir.ops import OPERATORS
from vermilion.ir.passes.opset_versions import settle_softmax
from vermilion.ir.passes.rewrite import run_pass

ISA = isa_of(find_target("zen3"))


def test_every_row_is_written_by_what_it_says() -> None:
    for name, rule in RULES.items():
        assert callable(rule.lower) or rule.lower in get_args(Written), name
        assert (rule.lower == "product") == (name in PRODUCTS), name
        assert (rule.lower == "definition") == (name in DEFINITIONS), name
        assert (rule.lower == "expression") == (("", name) in ELEMENTWISE), name


def test_every_row_has_its_price() -> None:
    assert {name for name in RULES if ("", name) not in OPERATORS} == {OPERATOR}


@pytest.mark.parametrize("name", [name for _, name in ELEMENTWISE])
def test_every_expression_is_written_down(name: str) -> None:
    row = ELEMENTWISE["", name]
    if row.define is not None:
        node = ir.Node("", name, [ir.Value(name=f"x{at}") for at in range(3)], name=name)
        node.outputs[0].dtype = ir.DataType.FLOAT
        inputs = [Constant(0.5)] * onnx.defs.get_schema(name).min_input
        assert row.define(node, list(inputs)) is not None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[4] x) => (float[4] y) { y = Hardmax(x) }", "generator has no `Hardmax`"),
        ("(int64[4] x) => (int64[4] y) { y = Softmax(x) }", "Softmax of integers"),
        ("(bool[4] x) => (bool[4] y) { y = Max(x, x) }", "Max of booleans"),
        ("(float[4] x) => (float[4] y) { y = Mod(x, x) }", "Mod of floats"),
        (
            "(float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y) { y = Conv(x, w) }",
            "Conv with weights that are not constant",
        ),
    ],
)
def test_what_no_row_writes_is_refused_by_name(text: str, reason: str) -> None:
    (node,) = read(text, opset=18).graph
    refused = refusal(node)
    assert refused is not None
    assert reason in refused.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(float[4] x) => (float[4] y) { y = Hardmax(x) }", "`Hardmax`"),
        (
            "(float[1,4,8,8] x, float[4,4,1,1] w) => (float[1,4,8,8] y) { y = Conv(x, w) }",
            "Conv with weights that are not constant",
        ),
    ],
)
def test_who_compiles_it_all_the_same_is_told_too(text: str, reason: str) -> None:
    model = read(text, opset=18)
    (node,) = model.graph
    with pytest.raises(UnsupportedError, match="cannot be generated here") as error:
        lowering_of(node)
    assert reason in error.value.message
    with pytest.raises(UnsupportedError, match=node.op_type):
        lower_part(model, ISA)


def reasons(text: str, opset: int) -> list[str]:
    model = ir.from_onnx_text(f'<ir_version: 7, opset_import: ["": {opset}]> g {text}')
    return [found.reason for node in model.graph if (found := refusal(node)) is not None]


@pytest.mark.parametrize(
    ("text", "opset", "operator"),
    [
        ("(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax(x) }", 12, "Softmax"),
        ("(float[2,3,4] x) => (float[2,3,4] y) { y = LogSoftmax<axis = 0>(x) }", 11, "LogSoftmax"),
        ("(float[4,4] x) => (float[2,4] y) { y = Slice<starts = [0], ends = [2]>(x) }", 9, "Slice"),
        ("(float[4,4] x) => (float[5,4] y) { y = Pad<pads = [0, 0, 1, 0]>(x) }", 10, "Pad"),
        ("(float[1,1,4,4] x, float[4] s) => (float[1,1,8,8] y) { y = Resize(x, s) }", 10, "Resize"),
    ],
)
def test_what_meant_another_thing(text: str, opset: int, operator: str) -> None:
    assert reasons(text, opset) == [f"{operator} of opset {opset}, which meant another thing"]


def test_versions_without_a_change_are_taken() -> None:
    text = "(float[2,3,4] x) => (float[2,3,4] y) { y = Softmax<axis = 2>(x) }"
    assert reasons(text, 7) == []
    text = "(float[4] x) => (float[4] y) { y = Relu(x) }"
    assert reasons(text, 7) == []
    assert reasons(text, 6) == ["Relu of opset 6, older than 7"]


@pytest.mark.parametrize("opset", [8, 11, 12])
@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", ["", "<axis = 0>", "<axis = 2>", "<axis = 3>"])
def test_an_old_softmax_in_a_model_that_stays_old(operator: str, axis: str, opset: int) -> None:
    """As where a node of another domain keeps the model from being raised."""
    model = ir.from_onnx_text(
        f'<ir_version: 7, opset_import: ["": {opset}]> g (float[2,3,4,5] x) => '
        f"(float[2,3,4,5] y) {{ y = {operator}{axis}(x) }}"
    )
    x = {"x": np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)}
    wanted = run_session(open_session(model, threads=1, optimize=False), x)["y"]
    run_pass(settle_softmax, model)
    assert not refusals(model)
    found = run_native(model, x, "cpu", "fp32")["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_bounds_as_attributes() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 7, opset_import: ["": 9]> g (float[20] x) => (float[20] y) '
        "{ y = Clip<min = -0.5, max = 0.75>(x) }"
    )
    x = np.linspace(-2, 2, 20).astype(np.float32)
    assert np.array_equal(run_native(model, {"x": x}, "cpu", "fp32")["y"], np.clip(x, -0.5, 0.75))
