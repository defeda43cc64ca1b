"""Pairs with something planted: exactly that is found, whatever the names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import version_converter

import models
from vermilion.ir.load import load_model
from vermilion.view.differ import Difference, difference


def renamed(model: ir.Model) -> ir.Model:
    """Return the graph as another exporter writes it: new names, another order of nodes."""
    proto = ir.to_proto(model)
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(name, f"v_{len(names)}")

    graph = proto.graph
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        value.name = new(value.name)
    for node in graph.node:
        node.name = new(node.name + "#node")
        node.input[:] = [new(name) for name in node.input]
        node.output[:] = [new(name) for name in node.output]
    weights = list(graph.initializer)
    del graph.initializer[:]
    graph.initializer.extend(reversed(weights))
    return ir.from_proto(proto)


def kinds(found: Difference) -> dict[str, int]:
    counts = found.as_json()["counts"]
    assert isinstance(counts, dict)
    return counts


def weight_of(model: ir.Model, name: str) -> ir.Value:
    return model.graph.initializers[name]


def set_weight(model: ir.Model, name: str, array: np.ndarray) -> None:
    weight_of(model, name).const_value = ir.Tensor(array, name=name)


def node_of(model: ir.Model, name: str) -> ir.Node:
    return next(node for node in model.graph if node.name == name)


def test_equal_models_have_no_difference() -> None:
    found = difference(models.resnet50(), models.resnet50())
    assert found.changes == ()
    assert (len(found.pairs), found.renamed) == (122, 0)


@pytest.mark.parametrize("build", [models.small_cnn, models.mobilenet, models.transformer_block])
def test_other_names_are_no_difference(build: Callable[[], ir.Model]) -> None:
    mine = build()
    found = difference(mine, renamed(build()))
    assert found.changes == ()
    assert len(found.pairs) == found.renamed == len(mine.graph)


def test_one_changed_weight_is_found_with_its_size() -> None:
    a, b = models.resnet50(), renamed(models.resnet50())
    name = "layer2.1.conv2.weight"
    array = weight_of(a, name).const_value.numpy().copy()  # type: ignore[union-attr]
    at = np.unravel_index(np.abs(array).argmin(), array.shape)
    array[at] += 0.5 * np.abs(array).max()
    set_weight(a, name, array)
    (change,) = difference(a, b).changes
    assert (change.kind, change.a[0].name) == ("weights", "layer2.1.conv2/Conv")
    assert "1 of 147,456 values differ" in change.what
    assert change.size == pytest.approx(0.5, abs=0.02)


def test_a_folded_batch_norm_is_one_fusion_each() -> None:
    found = difference(models.small_cnn(bn=True), renamed(models.small_cnn()))
    fused = [change for change in found.changes if change.kind == "fused"]
    assert [change.what for change in fused] == ["Conv + BatchNormalization → Conv"] * 2
    assert kinds(found) == {"fused": 2}  # whose weights are new for that alone


def test_a_fused_gelu_is_one_fusion() -> None:
    a = models.transformer_block()
    b = models.transformer_block()
    first = node_of(b, "gelu/Div")
    last = node_of(b, "gelu/Half")
    gelu = ir.node("Gelu", [first.inputs[0]], domain="com.microsoft", name="one")
    b.graph.insert_after(last, gelu)
    b.opset_imports["com.microsoft"] = 1
    last.outputs[0].replace_all_uses_with(gelu.outputs[0])
    for name in ("gelu/Half", "gelu/Mul", "gelu/Add", "gelu/Erf", "gelu/Div"):
        b.graph.remove(node_of(b, name), safe=True)
    found = difference(a, b)
    (fused,) = [change for change in found.changes if change.kind == "fused"]
    assert fused.what == "Div + Erf + Add + Mul × 2 → com.microsoft::Gelu"
    assert kinds(found) == {"model": 1, "fused": 1}
    assert kinds(difference(b, a)) == {"model": 1, "split": 1}


def test_another_opset_is_one_difference() -> None:
    a = models.transformer_block()
    proto = version_converter.convert_version(ir.to_proto(a), 21)
    (change,) = difference(a, ir.from_proto(proto)).changes
    assert (change.kind, change.what) == ("model", "opset 17 → 21")


SQUEEZE = {
    11: "y = Squeeze<axes = [0]>(x)\n z = ReduceSum<axes = [1]>(y)",
    13: "axes = Constant<value = int64[1] {0}>()\n y = Squeeze(x, axes)\n"
    " last = Constant<value = int64[1] {1}>()\n z = ReduceSum(y, last)",
}


def test_an_attribute_that_became_an_input_is_the_same() -> None:
    old, new = (
        load_model(
            onnx.parser.parse_model(
                f'<ir_version: 8, opset_import: ["": {opset}]> '
                f"g (float[1,4,8] x) => (float[4,1] z) {{ {body} }}"
            )
        )
        for opset, body in SQUEEZE.items()
    )
    (change,) = difference(old, new).changes
    assert change.what == "opset 11 → 13"


QUANTIZED = """<ir_version: 8, opset_import: ["": 17]>
g (float[1,8,16,16] x) => (float[1,8,16,16] y)
<float s = {0.05}, int8 z = {0}, float t = {SCALE}, int8[8,8,1,1] w = {WEIGHTS}, float u = {0.01}>
{
  q = QuantizeLinear(x, s, z)
  d = DequantizeLinear(q, s, z)
  v = DequantizeLinear(w, u, z)
  c = Conv(d, v)
  r = Relu(c)
  p = QuantizeLinear(r, t, z)
  y = DequantizeLinear(p, t, z)
}"""


def quantized(scale: str = "0.04", first: int = 3) -> ir.Model:
    values = [first, *[(7 * n) % 100 - 50 for n in range(63)]]
    text = QUANTIZED.replace("SCALE", scale).replace("WEIGHTS", ", ".join(map(str, values)))
    return load_model(onnx.parser.parse_model(text))


def test_a_requantized_scale_is_named_with_both_values() -> None:
    found = difference(quantized(), renamed(quantized("0.08")))
    assert kinds(found) == {"quantization": 2}  # of Q, and of the DQ behind it
    assert [change.what for change in found.changes] == [
        "QuantizeLinear: y_scale 0.04 → 0.08",
        "DequantizeLinear: x_scale 0.04 → 0.08",
    ]


def test_one_integer_weight_is_found() -> None:
    (change,) = difference(quantized(), renamed(quantized(first=4))).changes
    assert (change.kind, "1 of 64 values differ, by 1 " in change.what) == ("weights", True)


def test_a_changed_attribute() -> None:
    b = models.small_cnn()
    node_of(b, "maxpool").attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 1)
    (change,) = difference(models.small_cnn(), b).changes
    assert change.what == "MaxPool: ceil_mode: 0 → 1"
    # What is written and is the default anyway differs from nothing.
    c = models.small_cnn()
    node_of(c, "maxpool").attributes["ceil_mode"] = ir.AttrInt64("ceil_mode", 0)
    assert difference(models.small_cnn(), c).changes == ()


def test_a_removed_node_and_an_added_one() -> None:
    b = models.resnet50()
    gone = node_of(b, "layer3.2/relu1" if any(n.name == "layer3.2/relu1" for n in b.graph) else [
        n.name for n in b.graph if n.op_type == "Relu"][20])  # fmt: skip
    name = gone.name
    gone.outputs[0].replace_all_uses_with(gone.inputs[0])  # type: ignore[arg-type]
    b.graph.remove(gone, safe=True)
    (change,) = difference(models.resnet50(), b).changes
    assert (change.kind, change.what, change.a[0].name) == ("removed", "Relu", name)
    (change,) = difference(b, models.resnet50()).changes
    assert (change.kind, change.what, change.b[0].name) == ("added", "Relu", name)


def test_a_removed_layer_of_many_alike() -> None:
    a, b = models.resnet50(), models.resnet50()
    block = [n for n in b.graph if (n.name or "").startswith("layer3.3")]
    first = next(v for n in block for v in n.inputs if v is not None and v.producer() not in block
                 and v.const_value is None)  # fmt: skip
    last = next(v for n in block for v in n.outputs if any(u.node not in block for u in v.uses()))
    last.replace_all_uses_with(first)
    for node in reversed(block):
        b.graph.remove(node, safe=True)
    found = difference(a, b)
    removed = [change for change in found.changes if change.kind == "removed"]
    assert sum(len(change.a) for change in removed) == len(block)
    # Which of five layers that compute alike is gone, weights say: all others are found again.
    assert set(kinds(found)) == {"removed"}


def test_a_changed_batch() -> None:
    found = difference(models.small_cnn(batch=1), models.small_cnn(batch=4))
    inputs = [change.what for change in found.changes if change.kind == "model"]
    assert inputs[0] == "input 0: float 1×3×16×16 → float 4×3×16×16"
    assert set(kinds(found)) <= {"model", "shape"}


def test_what_a_node_reads() -> None:
    a, b = models.branching_cnn(), models.branching_cnn()
    joined = node_of(b, "joined")
    first, second = joined.inputs[0], joined.inputs[1]
    joined.replace_input_with(0, second)
    joined.replace_input_with(1, first)
    changes = difference(a, b).changes
    assert changes
    assert any("Concat" in change.what for change in changes)
