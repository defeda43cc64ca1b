"""Decomposed normalizations become one kernel, and what only looks like one does not."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from float_graphs import TOLERANCE, WAYS, Array, error_of, families, graph, node
from vermilion.codegen.lower.patterns.normalization import join_normalizations

NUMBERS = {
    "two": np.array(2, np.float32), "one": np.array(1, np.float32),
    "minus_half": np.array(-0.5, np.float32), "epsilon": np.array(1e-5, np.float32),
    "scale": np.linspace(0.5, 2, 48, dtype=np.float32),
    "shift": np.linspace(-1, 1, 48, dtype=np.float32),
}  # fmt: skip
CENTRE = [node("ReduceMean", "x", "mean", axes=[-1]), node("Sub", "x mean", "c")]


def x_of() -> Array:
    return np.random.default_rng(1).standard_normal((2, 5, 48), dtype=np.float32) * 2 + 1


def square(of: str, *, power: bool) -> list[onnx.NodeProto]:
    first = node("Pow", f"{of} two", "q") if power else node("Mul", f"{of} {of}", "q")
    mean = node("ReduceMean", "q", "v", axes=[2])
    return [first, mean, node("Add", "v epsilon", "e")]


def quotient(of: str, form: str) -> list[onnx.NodeProto]:
    if form == "power":
        return [node("Pow", "e minus_half", "r"), node("Mul", f"{of} r", "n")]
    root = node("Sqrt", "e", "s")
    if form == "div":
        return [root, node("Div", f"{of} s", "n")]
    inverse = node("Reciprocal", "s", "r") if form == "reciprocal" else node("Div", "one s", "r")
    return [root, inverse, node("Mul", f"r {of}", "n")]


def model_of(nodes: list[onnx.NodeProto]) -> ir.Model:
    used = {name for item in nodes for name in item.input}
    constants = {name: array for name, array in NUMBERS.items() if name in used}
    return graph(nodes, {"x": x_of()}, (2, 5, 48), constants)


FORMS = ("div", "reciprocal", "one over", "power")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("power", [True, False])
def test_layer_norm(power: bool, form: str) -> None:
    after = [node("Mul", "scale n", "m"), node("Add", "m shift", "y")]
    model = model_of([*CENTRE, *square("c", power=power), *quotient("c", form), *after])
    assert families(model) == ["normalize"]
    assert [n.op_type for n in join_normalizations(model).graph] == ["LayerNormalization"]
    for way in WAYS:
        assert error_of(model, {"x": x_of()}, *way) < TOLERANCE[way[1]]


@pytest.mark.parametrize("form", FORMS)
def test_root_mean_square_norm(form: str) -> None:
    after = [node("Mul", "n scale", "y")]
    model = model_of([*square("x", power=True), *quotient("x", form), *after])
    assert families(model) == ["normalize"]
    for way in WAYS:
        assert error_of(model, {"x": x_of()}, *way) < TOLERANCE[way[1]]


def test_without_scale_and_shift() -> None:
    after = [node("Relu", "n", "y")]
    model = model_of([*CENTRE, *square("c", power=True), *quotient("c", "div"), *after])
    assert families(model) == ["normalize", "map"]
    assert error_of(model, {"x": x_of()}, "cpu", "fp32") < TOLERANCE["fp32"]


def test_the_given_model_stays_as_it_is() -> None:
    after = [node("Relu", "n", "y")]
    model = model_of([*CENTRE, *square("c", power=True), *quotient("c", "div"), *after])
    before = [n.op_type for n in model.graph]
    assert join_normalizations(model) is not model
    assert [n.op_type for n in model.graph] == before


@pytest.mark.parametrize(
    "nodes",
    [
        # The mean of something else is subtracted.
        [node("ReduceMean", "x", "mean", axes=[1]), node("Sub", "x mean", "c"),
         *square("c", power=True), *quotient("x", "div"), node("Relu", "n", "y")],
        # The mean is over a dimension in the middle.
        [node("Mul", "x x", "q"), node("ReduceMean", "q", "v", axes=[1]),
         node("Add", "v epsilon", "e"), *quotient("x", "div"), node("Relu", "n", "y")],
        # What is divided is not what is squared.
        [node("Relu", "x", "c"), *square("c", power=True), *quotient("x", "div"),
         node("Relu", "n", "y")],
        # Nothing is added below the root.
        [node("Mul", "x x", "q"), node("ReduceMean", "q", "e", axes=[2]), *quotient("x", "div"),
         node("Relu", "n", "y")],
    ],
    ids=["other mean", "middle", "other square", "no epsilon"],
)  # fmt: skip
def test_what_is_no_normalization_stays(nodes: list[onnx.NodeProto]) -> None:
    model = model_of(nodes)
    assert join_normalizations(model) is model
    assert error_of(model, {"x": x_of()}, "cpu", "fp32") < TOLERANCE["fp32"]
