from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from models import resnet18, resnet50
from vermilion.ir.cost import model_cost, node_cost, value_bytes
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass


def parse(text: str) -> ir.Model:
    header = '<ir_version: 10, opset_import: ["" : 17]>\n'
    model = ir.from_proto(onnx.parser.parse_model(header + text))
    run_pass(infer_shapes, model)
    return model


def test_a_convolution_by_hand() -> None:
    model = parse(
        "g (float[1,3,8,8] x, float[4,3,3,3] w, float[4] b) => (float[1,4,6,6] y)"
        " { y = Conv(x, w, b) }"
    )
    (cost,) = model_cost(model).nodes
    # 144 outputs of 27 multiply-accumulates, and a bias each.
    assert cost.operations == 144 * (2 * 27 + 1)
    assert cost.activation_bytes == 4 * (192 + 108 + 4 + 144)
    assert cost.weight_bytes == 0
    assert (cost.priced, cost.exact) == (True, True)
    assert cost.gops == cost.operations / 1e9


def test_weights_are_told_from_activations() -> None:
    model = parse("g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add(x, w) }")
    cost = node_cost(model.graph[0])
    assert (cost.weight_bytes, cost.activation_bytes) == (8, 16)


def test_constants_are_data_not_operators() -> None:
    model = parse(
        "g (float[2] x) => (float[2] y) { c = Constant<value_float = 1.0>() y = Add(x, c) }"
    )
    assert [node.op_type for node in model_cost(model).nodes] == ["Add"]


def test_an_if_costs_its_dearer_branch() -> None:
    model = parse(
        """g (bool c, float[10] x) => (float[10] y) {
          y = If (c) <
            then_branch = t () => (float[10] a) { a = Relu (x) },
            else_branch = e () => (float[10] b) { d = Softmax (x) b = Relu (d) }
          >
        }"""
    )
    for graph in model.graphs():
        for node in graph:
            if node.op_type != "If":
                node.outputs[0].shape = ir.Shape([10])
    (cost,) = model_cost(model).nodes
    assert cost.operations == 5 * 10 + 10
    assert cost.op_type == "If"


def test_open_sizes_count_one_and_are_said() -> None:
    cost = model_cost(parse("g (float[n,64] x) => (float[n,64] y) { y = Relu(x) }"))
    assert (cost.operations, cost.exact) == (64, False)


def test_operators_without_a_row_are_named_and_cost_nothing() -> None:
    model = parse("g (float[4] x) => (float[4] y) { a = acme.Teleport(x) y = Relu(a) }")
    cost = model_cost(model)
    assert cost.unpriced == ("Teleport",)
    assert cost.nodes[0].operations == 0


@pytest.mark.parametrize(
    ("dtype", "shape", "expected"),
    [
        (ir.DataType.FLOAT, [2, 3], 24),
        (ir.DataType.INT4, [3], 2),
        (ir.DataType.BFLOAT16, [2, "n"], 4),
        (ir.DataType.STRING, [2], 8),
        (None, [5], 20),
        (ir.DataType.FLOAT, [], 4),
        (ir.DataType.FLOAT, [0, 7], 0),
    ],
)
def test_bytes_of_a_value(dtype: ir.DataType | None, shape: list[int | str], expected: int) -> None:
    value = ir.Value(name="v", shape=ir.Shape(shape))
    if dtype is not None:
        value.dtype = dtype
    assert value_bytes(value) == expected


def test_a_missing_value_has_no_bytes() -> None:
    assert value_bytes(None) == 0


@pytest.mark.parametrize(
    ("build", "operators", "published_gops"),
    # Source: the summaries in AMD's public Versal AI Edge Gen 2 tutorials.
    [(resnet18, 49, 3.64388), (resnet50, 122, 7.76806)],
    ids=["resnet18", "resnet50 v1"],
)
def test_published_figures(build, operators: int, published_gops: float) -> None:  # type: ignore[no-untyped-def]
    model = build()
    run_pass(infer_shapes, model)
    cost = model_cost(model)
    assert len(cost.nodes) == operators
    assert cost.gops == pytest.approx(published_gops, rel=0.005)
    assert cost.exact
