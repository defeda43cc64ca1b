"""Places that TopK gives: two that are equal within the roundings may change places, no others."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.proof.decisions import deciders, is_tie

SCORES = np.array([[4.0, 9.0, 9.0 + 1e-6, 1.0]], np.float32)
RIGHT = np.array([[2, 1, 0]])


def top() -> ir.Node:
    x = ir.Value(name="x", shape=ir.Shape([1, 4]), type=ir.TensorType(ir.DataType.FLOAT))
    k = ir.Value(name="k", shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64))
    k.const_value = ir.tensor(np.array([3]), name="k")
    return ir.node("TopK", [x, k], num_outputs=2)


@pytest.mark.parametrize(
    ("places", "is_right"),
    [
        ([[2, 1, 0]], True),
        ([[1, 2, 0]], True),
        ([[2, 0, 1]], False),
        ([[2, 1, 3]], False),
        ([[2, 2, 0]], False),  # one place twice
        ([[2, 1, 4]], False),
        ([[2, 1, -1]], False),
    ],
)
def test_places_of_equal_scores_may_change(places: list[list[int]], is_right: bool) -> None:
    node = top()
    assert "x" in deciders(node)
    assert is_tie(node, {"x": SCORES}, RIGHT, np.array(places)) is is_right
