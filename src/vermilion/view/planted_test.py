"""One graph of many kinds of nodes, one thing changed in it: that is found, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from vermilion.view.differ import Difference, difference

TEXT = """<ir_version: 8, opset_import: ["": 17]>
g (float[n,4] x, float[n,4] u, bool c) => (float[n,4] y, float[n,4] z)
<float s = {0.1}, uint8 zp = {3}, int64[2] size = {1,4}, float[4,4] w = {
  1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}, float[4] b = {1,2,3,4}> {
  [product] h0 = MatMul(x, w)
  [bias] h1 = Add(h0, b)
  [quantize] q0 = QuantizeLinear(h1, s, zp)
  [dequantize] d0 = DequantizeLinear(q0, s, zp)
  [join] k = Concat<axis = 1>(d0, u)
  [split] k1, k2 = Split<axis = 1>(k)
  [clip] m = Clip(k1)
  [branch] r = If (c) <
    then_branch = t () => (float[n,4] p) <float[4] tw = {1,2,3,4}> {
      p0 = Add(m, tw) p = Relu(p0) },
    else_branch = e () => (float[n,4] o) { o = Mul(m, u) }>
  [leaky] y = LeakyRelu<alpha = 0.1>(r)
  [fill] f0 = ConstantOfShape<value = float[1] {0}>(size)
  [sigmoid] s1 = Sigmoid(k2)
  [sum] z = Add(s1, f0)
}"""
Plant = Callable[[onnx.ModelProto], None]


def node(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(one for one in model.graph.node if one.name == name)


def attribute(one: onnx.NodeProto, name: str) -> onnx.AttributeProto:
    return next(found for found in one.attribute if found.name == name)


def body(model: onnx.ModelProto, name: str) -> onnx.GraphProto:
    return attribute(node(model, "branch"), name).g


def weight(graph: onnx.GraphProto, name: str, array: np.ndarray) -> None:
    found = next(one for one in graph.initializer if one.name == name)
    found.CopyFrom(numpy_helper.from_array(array, name))


def _set(name: str, *inputs: str) -> Plant:
    def plant(model: onnx.ModelProto) -> None:
        one = node(model, name)
        del one.input[:]
        one.input.extend(inputs)

    return plant


def _operator(name: str, op_type: str) -> Plant:
    return lambda model: setattr(node(model, name), "op_type", op_type)


def _weight(name: str, array: np.ndarray) -> Plant:
    return lambda model: weight(model.graph, name, array)


def _other_fill(model: onnx.ModelProto) -> None:
    value = attribute(node(model, "fill"), "value")
    value.t.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32)))


def _identity(model: onnx.ModelProto) -> None:
    node(model, "sum").input[0] = "s2"
    model.graph.node.insert(len(model.graph.node) - 1, helper.make_node("Identity", ["s1"], ["s2"]))


def _without_sigmoid(model: onnx.ModelProto) -> None:
    node(model, "sum").input[0] = "k2"
    model.graph.node.remove(node(model, "sigmoid"))


def _one_product(model: onnx.ModelProto) -> None:
    for name in ("product", "bias"):
        model.graph.node.remove(node(model, name))
    model.graph.node.insert(0, helper.make_node("Gemm", ["x", "w", "b"], ["h1"]))


def _folded(model: onnx.ModelProto) -> None:
    model.graph.node.remove(node(model, "fill"))
    zeros = np.zeros((1, 4), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(zeros, "f0"))


def _named_anew(model: onnx.ModelProto) -> None:
    def rename(graph: onnx.GraphProto) -> None:
        for one in graph.node:
            one.name = f"new {one.name}"
            for names in (one.input, one.output):
                names[:] = [f"v_{name}" if name else "" for name in names]
            for found in one.attribute:
                if found.HasField("g"):
                    rename(found.g)
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = f"v_{value.name}"

    rename(model.graph)


def _ordered_anew(model: onnx.ModelProto) -> None:
    fill = node(model, "fill")
    model.graph.node.remove(fill)
    model.graph.node.insert(0, fill)
    weights = list(model.graph.initializer)
    del model.graph.initializer[:]
    model.graph.initializer.extend(reversed(weights))


def _outputs_swapped(model: onnx.ModelProto) -> None:
    first, second = model.graph.output
    first.name, second.name = second.name, first.name


def _inner_added(model: onnx.ModelProto) -> None:
    graph = body(model, "then_branch")
    graph.node[1].output[0] = "p1"
    graph.node.append(helper.make_node("Neg", ["p1"], ["p"]))


def _inner_captured(model: onnx.ModelProto) -> None:
    body(model, "else_branch").node[0].input[1] = "x"


def _branches_swapped(model: onnx.ModelProto) -> None:
    one = node(model, "branch")
    first, second = attribute(one, "then_branch"), attribute(one, "else_branch")
    first.name, second.name = second.name, first.name


PLANTED: dict[str, tuple[Plant, dict[str, int]]] = {
    "nothing": (lambda model: None, {}),
    "names": (_named_anew, {}),
    "order": (_ordered_anew, {}),
    "weight": (_weight("b", np.array([1, 2, 3, 5], np.float32)), {"weights": 1}),
    "NaN": (_weight("b", np.array([1, 2, 3, np.nan], np.float32)), {"weights": 1}),
    "scale": (_weight("s", np.array(0.1000001, np.float32)), {"quantization": 2}),
    "zero point": (_weight("zp", np.array(4, np.uint8)), {"quantization": 2}),
    "zero point's type": (_weight("zp", np.array(3, np.int8)), {"quantization": 2}),
    "attribute": (
        lambda model: setattr(attribute(node(model, "leaky"), "alpha"), "f", 0.2),
        {"parameters": 1},
    ),
    "tensor in an attribute": (_other_fill, {"parameters": 1}),
    "opset": (lambda model: setattr(model.opset_import[0], "version", 16), {"model": 1}),
    "operator": (_operator("sigmoid", "Tanh"), {"replaced": 1}),
    "identity": (_identity, {"added": 1}),
    "removed": (_without_sigmoid, {"removed": 1}),
    "fused": (_one_product, {"fused": 1}),
    "folded": (_folded, {"fused": 1}),
    "optional input": (_set("clip", "k1", "", "s"), {"parameters": 1}),
    "order of inputs": (_set("join", "u", "d0"), {"wiring": 2}),
    "other output of a node": (_set("clip", "k2"), {"wiring": 1}),
    "outputs swapped": (_outputs_swapped, {"model": 2}),
    "output taken earlier": (
        lambda model: setattr(model.graph.output[0], "name", "r"), {"model": 1}
    ),
    "dead node": (
        lambda model: model.graph.node.append(helper.make_node("Exp", ["x"], ["dead"])),
        {"added": 1},
    ),
    "weight of a branch": (
        lambda model: weight(body(model, "then_branch"), "tw", np.ones(4, np.float32)),
        {"weights": 1},
    ),
    "operator of a branch": (
        lambda model: setattr(body(model, "then_branch").node[1], "op_type", "Sigmoid"),
        {"replaced": 1},
    ),
    "added to a branch": (_inner_added, {"added": 1}),
    "read by a branch": (_inner_captured, {"wiring": 1}),
    "output of a branch": (
        lambda model: setattr(body(model, "then_branch").output[0], "name", "p0"), {"wiring": 1}
    ),
    "branches swapped": (_branches_swapped, {"fused": 1, "split": 1}),
}  # fmt: skip


def planted(plant: Plant) -> Difference:
    first, second = onnx.parser.parse_model(TEXT), onnx.parser.parse_model(TEXT)
    plant(second)
    return difference(ir.from_proto(first), ir.from_proto(second))


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(name: str) -> None:
    plant, counts = PLANTED[name]
    assert planted(plant).as_json()["counts"] == counts


def test_words_say_where_it_is() -> None:
    (found,) = planted(PLANTED["weight of a branch"][0]).changes
    assert found.what.startswith("If, in then_branch: Add: B 3 of 4 values differ")
    assert [one.name for one in (*found.a, *found.b)] == ["branch", "branch"]
    (found, _) = planted(PLANTED["scale"][0]).changes
    assert found.what.endswith("y_scale 0.100000001 → 0.100000098")


@pytest.mark.parametrize(
    ("value", "op_type", "words"),
    [(2, "Mul", []), (3, "Mul", ["weights: Mul: B 2 → 3"]), (2, "Add", ["replaced: Mul → Add"])],
)
def test_functions_are_looked_into(value: int, op_type: str, words: list[str]) -> None:
    text = """<ir_version: 8, opset_import: ["": 17, "l": 1]>
    g (float[4] x) => (float[4] y) { y = l.f<a = 1.0>(x) }
    <domain: "l", opset_import: ["": 17]>
    f <a>(v) => (w) {
      k = Constant<value = float {%d}>() t = %s(v, k) w = Elu<alpha: float = @a>(t) }"""
    a, b = (
        ir.from_proto(onnx.parser.parse_model(text % of)) for of in ((2, "Mul"), (value, op_type))
    )
    assert [one.what for one in difference(a, b).changes] == [f"function `f`, {w}" for w in words]


def test_long_attributes_are_compared_whole() -> None:
    def model(last: int) -> ir.Model:
        keys = [*range(99), last]
        one = helper.make_node(
            "LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=keys,
            values_floats=[0.0] * 100,
        )  # fmt: skip
        ends = (
            [helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [3])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [3])],
        )
        return ir.from_proto(helper.make_model(helper.make_graph([one], "g", *ends)))

    (found,) = difference(model(99), model(100)).changes
    assert found.kind == "parameters"
    assert "keys_int64s: 100 values" in found.what
