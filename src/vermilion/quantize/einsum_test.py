"""Einsum is quantized as the product that `ir.passes.einsum` writes it as."""

from __future__ import annotations

from itertools import product

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.quantize.every_graph_test import RNG, decibels, feeds, first, model
from vermilion.quantize.quantize import quantize_model
from vermilion.quantize.working_copy import working_copy


@pytest.fixture(autouse=True)
def drawn_anew() -> None:
    """Let each test draw the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


X = (2, 5, 16)
BRANCHES = """c = Constant<value_int = 1>() b = Cast<to = 9>(c) y = If<
    then_branch = t () => (float[2,5,8] t) { t = Einsum<equation = "btd,de->bte">(x, w) },
    else_branch = e () => (float[2,5,8] e) { e = Einsum<equation = "de,btd->bte">(w, x) }
>(b)"""


@pytest.mark.parametrize(
    ("words", "scheme"),
    [
        *product(['"btd,de->bte">(x, w)', '"de,btd->bte">(w, x)'], ["a8w8", "int4", "bf16"]),
        (BRANCHES, "a8w8"),  # weights alone are not rounded in branches
    ],
)
def test_its_weights_are_rounded(words: str, scheme: str) -> None:
    node = words if words == BRANCHES else f"y = Einsum<equation = {words}"
    original = model(
        f"(float[2,5,16] x) => (float[2,5,8] y) {{ {node} }}",
        w=RNG.standard_normal((16, 8)).astype(np.float32),
    )
    data = feeds("x", *X)
    done = quantize_model(original, data, scheme=scheme, block=16)
    assert decibels(original, done, data) > {"a8w8": 30.0, "int4": 15.0, "bf16": 40.0}[scheme]
    weights = done.model.graph.initializers.values()
    assert not any(v.dtype == ir.DataType.FLOAT and v.name == "w" for v in weights)
    assert "Einsum" not in {node.op_type for node in done.model.graph.all_nodes()}


@pytest.mark.parametrize(
    ("equation", "weight"),
    [
        ("btd,dhk->bthk", (16, 2, 4)),
        ("btd,bde->bte", (2, 16, 8)),
        ("btd,tde->be", (5, 16, 8)),
        ("btd,d->bt", (16,)),
        ("btd,de->be", (16, 8)),
    ],
)
def test_weights_of_any_form(equation: str, weight: tuple[int, ...]) -> None:
    sizes = ",".join(map(str, np.einsum(equation, np.zeros(X), np.zeros(weight)).shape))
    node = f'Einsum<equation = "{equation}">(x, w)'
    original = model(
        f"(float[2,5,16] x) => (float[{sizes}] y) {{ y = {node} }}",
        w=RNG.standard_normal(weight).astype(np.float32),
    )
    data = feeds("x", *X)
    work = working_copy(original)
    np.testing.assert_allclose(first(work, data[0]), first(original, data[0]), 1e-4, 1e-5)
    assert all(v.uses() for v in work.graph.initializers.values())
    done = quantize_model(original, data, scheme="a8w8")
    assert decibels(original, done, data) > 30.0


def test_two_that_read_one_weight_have_names_of_their_own() -> None:
    text = """(float[2,5,16] x) => (float[2,5,8] y) {
        a = Einsum<equation = "btd,ed->bte">(x, w) b = Einsum<equation = "ed,btd->bte">(w, x)
        y = Add(a, b) }"""
    original = model(text, w=RNG.standard_normal((8, 16)).astype(np.float32))
    data = feeds("x", *X)
    done = quantize_model(original, data, scheme="a8w8")
    assert decibels(original, done, data) > 30.0
    names = [node.name for node in done.model.graph.all_nodes()]
    assert len(set(names)) == len(names)
