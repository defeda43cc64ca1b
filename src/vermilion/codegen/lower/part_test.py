"""Results go straight to the caller's memory where nobody else needs them."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import steps
from native_text import differences, normal, read


def test_a_result_is_written_where_the_caller_wants_it() -> None:
    model = read("(float[4,8] x) => (float[4,8] y) { y = Tanh(x) }")
    (only,) = steps(model)
    assert only.writes[0].buffer.place == "output"
    assert only.writes[0].buffer.name == "y"


@pytest.mark.parametrize(
    ("outputs", "nodes"),
    [
        ("float[4,8] y, float[4] z", "y = Tanh(x) z = ReduceSum<keepdims = 0>(y, a)"),  # read again
        ("float[4,8] y, float[8,4] z", "y = Tanh(x) z = Reshape(y, s)"),  # given twice
        ("float[8,4] y", "t = Tanh(x) y = Transpose<perm = [1, 0]>(t)"),
        ("float[4,8] y", "y = Identity(x)"),
        ("float[8,4] y", "t = Tanh(x) y = Reshape(t, s)"),
    ],
)
def test_every_result_is_right(outputs: str, nodes: str) -> None:
    weights = {"a": np.array([1]), "s": np.array([8, 4])}
    text = f"(float[4,8] x, int64[1] a, int64[2] s) => ({outputs}) {{ {nodes} }}"
    model = read(text, **weights)
    assert max(differences(model, {"x": normal(4, 8)}).values()) < 1e-6
