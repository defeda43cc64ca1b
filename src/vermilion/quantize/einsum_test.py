from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.quantize import quantize_model
from vermilion.quantize.einsum import plain_einsums
from vermilion.quantize.every_graph_test import RNG, decibels, feeds, first, model


@pytest.fixture(autouse=True)
def drawn_anew() -> None:
    """Let each test draw the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


X = (2, 5, 16)
# Equation, shape of the weight, kinds of nodes.
WEIGHTED = {
    "btd,de->bte": ((16, 8), ["MatMul"]),
    "btd, ed -> bte": ((8, 16), ["MatMul"]),
    "btd,dhk->bthk": ((16, 2, 4), ["MatMul", "Reshape"]),
    "btd,de->bet": ((16, 8), ["MatMul", "Transpose"]),
    "btd,tde->be": ((5, 16, 8), ["Reshape", "MatMul"]),
    "btd,bde->bte": ((2, 16, 8), ["Einsum"]),  # a weight for each of a batch
    "btd,d->bt": ((16,), ["Einsum"]),
    "...d,de->...e": ((16, 8), ["Einsum"]),
    "btd,de->be": ((16, 8), ["Einsum"]),
}


def shape_of(equation: str, weight: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(np.einsum(equation, np.zeros(X), np.zeros(weight)).shape)


@pytest.mark.parametrize("equation", WEIGHTED)
@pytest.mark.parametrize("turned", [False, True])
def test_it_is_a_product(equation: str, turned: bool) -> None:
    shape, kinds = WEIGHTED[equation]
    sizes = ",".join(map(str, shape_of(equation, shape)))
    names = "x, w"
    if turned:
        left, arrow, result = equation.partition("->")
        equation = ",".join(reversed(left.split(","))) + arrow + result
        names = "w, x"
    node = f'Einsum<equation = "{equation}">({names})'
    text = f"(float[2,5,16] x) => (float[{sizes}] y) {{ y = {node} }}"
    weight = RNG.standard_normal(shape).astype(np.float32)
    original = model(text, w=weight)
    work = original.clone()
    plain_einsums(work)
    assert [node.op_type for node in work.graph] == kinds
    feed = feeds("x", *X, count=1)[0]
    np.testing.assert_allclose(first(work, feed), first(original, feed), rtol=1e-4, atol=1e-5)
    assert ("w" in work.graph.initializers) == any(
        value.name == "w" for node in work.graph for value in node.inputs if value is not None
    )


@pytest.mark.parametrize("equation", ["bhid,bhjd->bhij", "bihd,bjhd->bhij", "bhid,bhdj->bihj"])
def test_two_tensors(equation: str) -> None:
    a, b = (
        tuple({"b": 1, "h": 2, "i": 3, "j": 4, "d": 8}[c] for c in t)
        for t in equation.split("->")[0].split(",")
    )
    sizes = [",".join(map(str, s)) for s in (a, b)]
    result = np.einsum(equation, np.zeros(a), np.zeros(b)).shape
    outputs = ",".join(map(str, result))
    text = f"""(float[{sizes[0]}] p, float[{sizes[1]}] q) => (float[{outputs}] y) {{
        y = Einsum<equation = "{equation}">(p, q) }}"""
    original = model(text)
    work = original.clone()
    plain_einsums(work)
    assert "Einsum" not in [node.op_type for node in work.graph]
    feed = {n: RNG.standard_normal(s).astype(np.float32) for n, s in (("p", a), ("q", b))}
    np.testing.assert_allclose(first(work, feed), first(original, feed), rtol=1e-4, atol=1e-5)


def test_its_weights_are_rounded() -> None:
    text = '(float[2,5,16] x) => (float[2,5,8] y) { y = Einsum<equation = "btd,de->bte">(x, w) }'
    original = model(text, w=RNG.standard_normal((16, 8)).astype(np.float32))
    data = feeds("x", *X)
    for scheme, least in {"a8w8": 30.0, "int4": 15.0, "bf16": 40.0}.items():
        done = quantize_model(original, data, scheme=scheme, block=16)
        assert decibels(original, done, data) > least
        weights = done.model.graph.initializers.values()
        assert not any(v.dtype == ir.DataType.FLOAT and v.name == "w" for v in weights)
