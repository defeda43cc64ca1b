"""Every row says what writes its operator; what no row writes is refused by name."""

from __future__ import annotations

from typing import get_args

import onnx
import onnx_ir as ir
import pytest

from native_text import read
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.block_rounding import OPERATOR
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.lower.patterns.definitions import DEFINITIONS
from vermilion.codegen.lower.rules import PRODUCTS, RULES, Written, lowering_of, refusal
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.elementwise import ELEMENTWISE
from vermilion.ir.expression import Constant
from vermilion.ir.ops import OPERATORS

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
