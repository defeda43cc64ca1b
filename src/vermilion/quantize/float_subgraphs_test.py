from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from vermilion.quantize.float_subgraphs import float_subgraphs


def subgraphs(body: str) -> list[str]:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y) {body}'
    graph = ir.from_proto(onnx.parser.parse_model(text)).graph
    found = float_subgraphs(graph)
    return [node.op_type for node in graph if node in found]


LAYER_NORM = """
    <float two = {2.0}, float small = {0.00001}, float[4] gain = {1.0, 2.0, 3.0, 4.0}> {
    mean = ReduceMean<axes=[-1]>(x)
    centred = Sub(x, mean)
    square = Pow(centred, two)
    variance = ReduceMean<axes=[-1]>(square)
    safe = Add(variance, small)
    root = Sqrt(safe)
    normal = Div(centred, root)
    scaled = Mul(normal, gain)
    shifted = Add(scaled, gain)
    y = Add(shifted, x)
    }"""


def test_layer_norm_is_an_island_up_to_its_shift() -> None:
    expected = ["ReduceMean", "Sub", "Pow", "ReduceMean", "Add", "Sqrt", "Div", "Mul", "Add"]
    assert subgraphs(LAYER_NORM) == expected


def test_reciprocal_and_constant_first_are_followed() -> None:
    body = """<float small = {0.00001}> {
        square = Mul(x, x)
        mean = ReduceMean<axes=[-1]>(square)
        safe = Add(small, mean)
        root = Sqrt(safe)
        inverse = Reciprocal(root)
        y = Mul(x, inverse)
        }"""
    assert subgraphs(body) == ["Mul", "ReduceMean", "Add", "Sqrt", "Reciprocal", "Mul"]


def test_softmax_is_an_island() -> None:
    body = """{
        top = ReduceMax<axes=[-1]>(x)
        below = Sub(x, top)
        e = Exp(below)
        axes = Constant<value_ints=[-1]>()
        sum = ReduceSum(e, axes)
        y = Div(e, sum)
        }"""
    assert subgraphs(body) == ["ReduceMax", "Sub", "Exp", "ReduceSum", "Div"]


@pytest.mark.parametrize(
    "body",
    [
        "{ a = Abs(x) \n r = Sqrt(a) \n y = Div(x, r) }",
        "{ e = Exp(x) \n y = Div(e, x) }",
        "{ a = Mul(x, x) \n y = Add(a, x) }",
    ],
)
def test_other_arithmetic_is_none(body: str) -> None:
    assert subgraphs(body) == []
