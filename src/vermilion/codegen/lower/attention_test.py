"""Attention runs as one kernel and equals ONNX Runtime."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import pytest

from float_graphs import TOLERANCE, WAYS, Array, error_of, families, graph, node, run_native


@dataclass(frozen=True)
class Case:
    """Sizes of an attention; `heads` of `depth` for queries and keys, `width` for values."""

    batch: int
    heads: int
    rows: int
    keys: int
    depth: int
    width: int
    mask: str = ""


CASES = (
    Case(1, 2, 16, 16, 16, 16),
    Case(1, 3, 7, 9, 5, 3, "full"),
    Case(2, 3, 40, 33, 33, 31, "keys"),
    Case(1, 2, 128, 128, 64, 64, "keys"),
    Case(1, 1, 1, 70, 64, 64),
    Case(2, 2, 37, 37, 8, 8, "causal"),
    # Several blocks of keys: the online softmax.
    Case(1, 2, 33, 600, 32, 32, "causal"),
    Case(1, 1, 10, 1030, 16, 24, "full"),
)


def mask_of(case: Case, random: np.random.Generator) -> Array:
    full = (case.batch, case.heads, case.rows, case.keys)
    if case.mask == "keys":
        hidden = random.standard_normal((case.batch, 1, 1, case.keys)) > 1
        return np.where(hidden, np.finfo(np.float32).min, 0).astype(np.float32)
    if case.mask == "causal":
        seen = np.tril(np.ones(full[2:]), case.keys - case.rows) > 0
        return np.where(seen, 0, -np.inf).astype(np.float32)[None, None]
    return random.standard_normal(full, dtype=np.float32)


def attention(case: Case) -> tuple[ir.Model, dict[str, Array]]:
    """Return a model as exporters write it: heads split off and merged by Reshape and Transpose."""
    random = np.random.default_rng(case.rows)
    sizes = {"q": case.rows, "k": case.keys, "v": case.keys}
    features = {"q": case.depth, "k": case.depth, "v": case.width}
    orders = {"q": [0, 2, 1, 3], "k": [0, 2, 3, 1], "v": [0, 2, 1, 3]}
    inputs, nodes = {}, []
    constants: dict[str, Array] = {"root": np.array(math.sqrt(case.depth), np.float32)}
    for name, length in sizes.items():
        shape = (case.batch, length, case.heads * features[name])
        inputs[name] = random.standard_normal(shape, dtype=np.float32)
        constants[f"{name}s"] = np.array([case.batch, length, case.heads, features[name]])
        nodes.append(node("Reshape", f"{name} {name}s", f"{name}r"))
        nodes.append(node("Transpose", f"{name}r", f"{name}t", perm=orders[name]))
    nodes += [node("MatMul", "qt kt", "s"), node("Div", "s root", "d")]
    if case.mask:
        inputs["mask"] = mask_of(case, random)
        nodes.append(node("Add", "d mask", "m"))
    nodes += [
        node("Softmax", "m" if case.mask else "d", "w", axis=-1), node("MatMul", "w vt", "c"),
        node("Relu", "c", "r"), node("Transpose", "r", "t", perm=[0, 2, 1, 3]),
        node("Reshape", "t merge", "y"),
    ]  # fmt: skip
    result = (case.batch, case.rows, case.heads * case.width)
    constants["merge"] = np.array(result)
    return graph(nodes, inputs, result, constants), inputs


@pytest.mark.parametrize("way", WAYS, ids="-".join)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rows}x{case.keys}{case.mask}")
def test_attention(case: Case, way: tuple[str, str]) -> None:
    model, inputs = attention(case)
    assert error_of(model, inputs, *way) < TOLERANCE[way[1]]


def test_a_mask_of_numbers_is_made_and_fused() -> None:
    random = np.random.default_rng(3)
    shapes = {"q": (2, 4, 8, 16), "k": (2, 4, 16, 8), "v": (2, 4, 8, 16)}
    inputs: dict[str, Array] = {
        name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    inputs["ids"] = np.array([[1, 1, 1, 1, 1, 0, 0, 0], [1] * 8], np.int64)
    constants = {
        "axes": np.array([1, 2]), "none": np.array(0), "whole": np.array([2, 1, 8, 8]),
        "low": np.array(np.finfo(np.float32).min), "zero": np.array(0, np.float32),
    }  # fmt: skip
    nodes = [
        node("Unsqueeze", "ids axes", "u"), node("Expand", "u whole", "e"),
        node("Equal", "e none", "hidden"), node("Where", "hidden low zero", "bias"),
        node("MatMul", "q k", "s"), node("Add", "s bias", "b"),
        node("Softmax", "b", "w", axis=-1), node("MatMul", "w v", "y"),
    ]  # fmt: skip
    model = graph(nodes, inputs, (2, 4, 8, 16), constants)
    assert families(model).count("attention") == 1
    for way in WAYS:
        assert error_of(model, inputs, *way) < TOLERANCE[way[1]]


def test_it_is_one_kernel_beside_the_packing_of_the_keys() -> None:
    model, _ = attention(CASES[0])
    assert families(model) == ["pack", "attention", "map"]


def test_scores_that_others_read_are_written() -> None:
    random = np.random.default_rng(1)
    shapes = {"q": (2, 8, 16), "k": (2, 16, 8), "v": (2, 8, 16)}
    inputs = {k: random.standard_normal(s, dtype=np.float32) for k, s in shapes.items()}
    nodes = [
        node("MatMul", "q k", "s"), node("Softmax", "s", "w", axis=-1), node("MatMul", "w v", "c"),
        node("ReduceSum", "s", "sum", keepdims=1), node("Add", "c sum", "y"),
    ]  # fmt: skip
    model = graph(nodes, inputs, (2, 8, 16))
    assert "attention" not in families(model)
    assert error_of(model, inputs, "cpu", "fp32") < TOLERANCE["fp32"]


def test_a_softmax_over_rows_is_no_attention() -> None:
    random = np.random.default_rng(2)
    shapes = {"q": (2, 8, 16), "k": (2, 16, 8), "v": (2, 8, 16)}
    inputs = {k: random.standard_normal(s, dtype=np.float32) for k, s in shapes.items()}
    nodes = [
        node("MatMul", "q k", "s"), node("Softmax", "s", "w", axis=1), node("MatMul", "w v", "y")
    ]  # fmt: skip
    model = graph(nodes, inputs, (2, 8, 16))
    assert "attention" not in families(model)
    assert error_of(model, inputs, "cpu", "fp32") < TOLERANCE["fp32"]


def test_the_answer_is_the_same_for_any_number_of_workers() -> None:
    model, inputs = attention(CASES[2])
    one, two, four = (run_native(model, inputs, "cpu", "fp32", n)["y"] for n in (1, 2, 4))
    assert np.array_equal(one, two)
    assert np.array_equal(one, four)
