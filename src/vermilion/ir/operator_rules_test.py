"""Amounts, axes and sizes that do not fit: an error that names the node, never another number."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from vermilion.api import compile_model
from vermilion.errors import ModelError, UnsupportedError, VermilionError
from vermilion.ir.operator_rules import with_node
from vermilion.ir.passes.pipeline import simplify

WEIGHT = np.ones((4, 3, 3, 3), np.float32)


def lengths(*numbers: int) -> NDArray[np.int64]:
    return np.array(numbers, np.int64)


# Operator and attributes, and its inputs behind the image.
BROKEN = {
    "too few pads": ("Pad", {"p": lengths(1, 1)}),
    "too many pads": ("Pad", {"p": lengths(*[0] * 9)}),
    "an odd number of pads": ("Pad", {"p": lengths(1, 2, 3)}),
    "pads that cut more than there is": ("Pad", {"p": lengths(0, 0, -40, 0, 0, 0, 0, 0)}),
    "starts and ends": ("Slice", {"s": lengths(0, 1), "e": lengths(2)}),
    "starts and axes": ("Slice", {"s": lengths(0), "e": lengths(2), "a": lengths(0, 1)}),
    "an axis of a slice": ("Slice", {"s": lengths(0), "e": lengths(2), "a": lengths(4)}),
    "an axis twice": ("Slice", {"s": lengths(0, 0), "e": lengths(2, 2), "a": lengths(2, 2)}),
    "a step of 0": (
        "Slice", {"s": lengths(0), "e": lengths(2), "a": lengths(0), "k": lengths(0)},
    ),
    "too short an order": ("Transpose<perm = [0, 1, 2]>", {}),
    "a repeated order": ("Transpose<perm = [0, 1, 2, 2]>", {}),
    "two pads of four": ("Conv<pads = [1, 1]>", {"w": WEIGHT}),
    "one stride of two": ("Conv<strides = [1]>", {"w": WEIGHT}),
    "one dilation of two": ("Conv<dilations = [2]>", {"w": WEIGHT}),
    "another kernel": ("Conv<kernel_shape = [5, 5]>", {"w": WEIGHT}),
    "a group that does not divide": ("Conv<group = 2>", {"w": WEIGHT}),
    "other channels": ("Conv", {"w": np.ones((4, 5, 3, 3), np.float32)}),
    "a bias of another length": ("Conv", {"w": WEIGHT, "b": np.ones(3, np.float32)}),
    "a window of one axis": ("MaxPool<kernel_shape = [2]>", {}),
    "a window larger than the image": ("AveragePool<kernel_shape = [20, 20]>", {}),
    "three parts of a split": ("Split<axis = 1>", {"s": lengths(1, 1, 1)}),
    "another number of elements": ("Reshape", {"s": lengths(5, -1)}),
    "other sizes": ("Reshape", {"s": lengths(5, 7)}),
    "other sizes with one kept": ("Reshape", {"s": lengths(0, 3, 8, 7)}),
    "two open sizes": ("Reshape", {"s": lengths(-1, -1)}),
    "what does not broadcast": ("Expand", {"s": lengths(2, 3, 8, 5)}),
    "too few repeats": ("Tile", {"r": lengths(1, 2)}),
    "an axis that is not there": ("Unsqueeze", {"a": lengths(9)}),
    "an axis of more than one": ("Squeeze", {"a": lengths(0)}),
    "an axis of a reduction": ("ReduceSum", {"a": lengths(4)}),
    "an axis of a reduction, before opset 18": ("ReduceMean<axes = [-5]>", {}),
    "an axis of a softmax": ("Softmax<axis = 4>", {}),
    "an axis of a gather": ("Gather<axis = -5>", {"i": lengths(0)}),
    "other inner sizes": ("MatMul", {"w": np.ones((5, 5), np.float32)}),
    "sizes that do not broadcast": ("Add", {"w": np.ones(7, np.float32)}),
    "scales for other channels": (
        "BatchNormalization", dict.fromkeys("abcd", np.ones(4, np.float32)),
    ),
    "blocks that do not divide": ("DepthToSpace<blocksize = 2>", {}),
}  # fmt: skip


def text(operator: str, weights: dict[str, NDArray[np.generic]]) -> str:
    types = {"f": "float", "i": "int64"}
    declared = "".join(
        f", {types[a.dtype.kind]}{list(a.shape)} {name}" for name, a in weights.items()
    )
    inputs = ", ".join(["t", *weights])
    return (
        '<ir_version: 8, opset_import: ["": 17]>'
        f" g (float[2,3,8,8] x{declared}) => (float y) {{ t = Abs(x) y = {operator}({inputs}) }}"
    )


@pytest.mark.parametrize("what", BROKEN)
def test_what_an_operator_does_not_allow(what: str, tmp_path: Path) -> None:
    operator, weights = BROKEN[what]
    proto = onnx.parser.parse_model(text(operator, dict(weights)))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    del proto.graph.input[1:]
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    with pytest.raises(VermilionError) as caught:
        compile_model(path, cache_dir=tmp_path / "cache")
    assert f"node `y`, {operator.partition('<')[0]}" in caught.value.where
    assert caught.value.hint
    assert "ONNXRuntimeError" not in caught.value.message


def test_of_several_nodes_the_right_one_is_named() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[n] y)'
        " { p = Constant<value_ints = [1]>() q = Constant<value_ints = [1, 1]>()"
        " s = Pad(x, q) t = Pad(s, p) y = Pad(t, p) }"
    )
    with pytest.raises(ModelError) as caught:
        simplify(model)
    assert caught.value.where == "node `t`, Pad"


def test_a_failed_run_names_one_of_the_nodes_that_it_may_mean() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 17]> g (float[3] x, int64[2] p) => (float[n] y)'
        " { s = Pad(x, p) y = Pad(s, p) z = Abs(x) }"
    )
    failed = UnsupportedError("running the model failed: no", where="node ``, Pad", hint="none")
    assert with_node(failed, model).where == (
        "one of 2 nodes Pad, the first of which is node `s`, Pad"
    )
    failed = UnsupportedError("running the model failed: no", where="node ``, Abs", hint="none")
    assert with_node(failed, model).where == "node `z`, Abs"


def test_what_onnx_does_not_know_breaks_no_rule() -> None:
    """It has no inference for these operators, and says so of the node behind them."""
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3, "com.microsoft": 1]>'
        " g (float[2,5] x, float[5,3] w) => (float[2,3] y, float[2,3] z) {"
        " a = ai.onnx.ml.Scaler<offset = [1.0], scale = [0.5]>(x) y = MatMul(a, w)"
        " b = com.microsoft.SampleOp(x) z = MatMul(b, w) }"
    )
    assert len(simplify(model).model.graph) == 4


def test_an_operator_that_is_defined_by_others_breaks_no_rule() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["": 17]>'
        " g (float[2,3,4,4] x) => (float[2,3,4,4] y)"
        " { y = MeanVarianceNormalization<axes = [0, 2, 3]>(x) }"
    )
    assert len(simplify(model).model.graph) == 1


def test_a_branch_that_is_not_taken_may_break_every_rule() -> None:
    """Exporters guard a Squeeze with an If on the size."""
    model = ir.from_onnx_text(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[2,3] x, bool c) => (float[n] y) {
          y = If (c) <
            then_branch = a () => (float[n] t) {
              one = Constant<value_ints = [1]>() t = Squeeze(x, one)
            },
            else_branch = b () => (float[n] e) {
              flat = Constant<value_ints = [-1]>() e = Reshape(x, flat)
            }
          >
        }"""
    )
    assert simplify(model).model.graph[0].op_type == "If"
