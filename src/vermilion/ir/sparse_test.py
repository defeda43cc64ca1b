"""Sparse weights at the door: what they are as ordinary ones, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from vermilion.api import compile_model
from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.load import load_model

FEEDS = {"x": np.array([[1, 2, 3], [4, 5, 6]], np.float32)}
DENSE = np.array([[0, 1, 0, 0], [0, 2, 0, 0], [0, 0, -3, 0]], np.float32)


def _sparse(places: Sequence[object], dims: Sequence[int] = (3, 4)) -> onnx.SparseTensorProto:
    values = onnx.numpy_helper.from_array(np.array([1, 2, -3], np.float32), "w")
    indices = onnx.numpy_helper.from_array(np.array(places, np.int64), "w_places")
    return helper.make_sparse_tensor(values, indices, dims)


def _model(weight: onnx.SparseTensorProto, *, is_constant: bool = False) -> onnx.ModelProto:
    """Return x · w, where `w` is a sparse weight, or a constant in both branches of an If."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float[2, 3] x) => (float[2, 4] y) {'
        "zero = Constant <value = float {0}> () first = ReduceMax <keepdims = 0> (x) "
        "asked = Greater (first, zero) y = If (asked) <"
        "then_branch = a () => (float[2, 4] t) { t = MatMul (x, w) }, "
        "else_branch = b () => (float[2, 4] e) { e = MatMul (x, w) }>}"
    )
    if not is_constant:
        model.graph.sparse_initializer.append(weight)
        return model
    for attribute in model.graph.node[-1].attribute:
        constant = helper.make_node("Constant", [], ["w"])
        constant.attribute.append(helper.make_attribute("sparse_value", weight))
        attribute.g.node.insert(0, constant)
    return model


@pytest.mark.parametrize("places", [[1, 5, 10], [[0, 1], [1, 1], [2, 2]]], ids=["flat", "rows"])
@pytest.mark.parametrize("is_constant", [False, True], ids=["weight", "constant"])
def test_a_sparse_weight_is_an_ordinary_one(
    tmp_path: Path, places: list[object], is_constant: bool
) -> None:
    model = _model(_sparse(places), is_constant=is_constant)
    ours = compile_model(model, cache_dir=tmp_path).session()
    assert np.array_equal(ours.run(None, FEEDS)[0], FEEDS["x"] @ DENSE)
    theirs = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.array_equal(theirs.run(None, FEEDS)[0], FEEDS["x"] @ DENSE)


@pytest.mark.parametrize(
    ("places", "dims", "words"),
    [
        ([1, 5, 12], (3, 4), "outside"),
        ([1, -1, 3], (3, 4), "outside"),
        ([[0, 1], [1, 4], [2, 2]], (3, 4), "outside"),
        ([1, 5, 5], (3, 4), "at one place"),
        ([1, 5], (3, 4), "3 values at places"),
        ([[0], [1], [2]], (3, 4), "3 values at places"),
        ([1, 5, 10], (), "its shape is"),
        ([1, 5, 10], (-3, -4), "its shape is"),
    ],
)
def test_values_that_lie_nowhere_are_an_error(
    places: list[object], dims: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(_model(_sparse(places, dims)))


def test_a_shape_that_nothing_holds_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="too large"):
        load_model(_model(_sparse([1, 5, 10], (1 << 20, 1 << 20))))
