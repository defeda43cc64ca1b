"""Weights are packed for each use: no missing name and no shared weight mixes them up."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from native_text import differences, normal, read

CASES = {
    "transposed convolutions": (
        "(float[1,3,4,5] x) => (float[1,6,8,10] y, float[1,6,8,10] z)",
        "y = ConvTranspose<strides = [2,2]> (x, a) z = ConvTranspose<strides = [2,2]> (x, b)",
        {"a": (3, 6, 2, 2), "b": (3, 6, 2, 2)},
    ),
    "recurrent cells": (
        "(float[4,2,3] x) => (float[4,1,2,5] y, float[4,1,2,5] z)",
        "y = RNN<hidden_size = 5> (x, a, c) z = RNN<hidden_size = 5> (x, b, d)",
        {"a": (1, 5, 3), "b": (1, 5, 3), "c": (1, 5, 5), "d": (1, 5, 5)},
    ),
    "cells of other sizes": (
        "(float[4,2,3] x) => (float[4,1,2,5] y, float[4,1,2,40] z)",
        "y = GRU<hidden_size = 5> (x, a, c) z = GRU<hidden_size = 40> (x, b, d)",
        {"a": (1, 15, 3), "b": (1, 120, 3), "c": (1, 15, 5), "d": (1, 120, 40)},
    ),
    "other groups": (
        "(float[1,4,5,5] x, float[1,8,5,5] v) => (float[1,8,3,3] y, float[1,8,3,3] z)",
        "y = Conv<group = 2> (x, a) z = Conv<group = 4> (v, a)",
        {"a": (8, 2, 3, 3)},
    ),
    "few rows and many": (
        "(float[512,768] x, float[9,768] v) => (float[512,768] y, float[9,768] z)",
        "y = MatMul (x, a) z = MatMul (v, a)",
        {"a": (768, 768)},
    ),
    "pieces of other depths": (
        "(float[128,9000] x, float[80,9000] v) => (float[128,16] y, float[80,16] z)",
        "y = MatMul (x, a) z = MatMul (v, a)",
        {"a": (9000, 16)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_nodes_without_names_keep_their_own_weights(case: str) -> None:
    signature, nodes, shapes = CASES[case]
    weights = {n: normal(*shape, seed=ord(n)) * np.float32(0.1) for n, shape in shapes.items()}
    drawn = "".join(f", float{list(shape)} {name}" for name, shape in shapes.items())
    model = read(f"{signature.replace(') =>', f'{drawn}) =>')} {{ {nodes} }}", **weights)
    for node in model.graph:
        node.name = ""
    inputs = {
        str(value.name): normal(*(int(size) for size in value.shape))  # type: ignore[union-attr]
        for value in model.graph.inputs
        if value.name not in weights
    }
    assert max(differences(model, inputs).values()) < 1e-4


def test_triangles_without_names() -> None:
    signature = "(float[5,6] x, int64 a, int64 b) => (float[5,6] y, float[5,6] z)"
    text = f"{signature} {{ y = Trilu(x, a) z = Trilu(x, b) }}"
    model = read(text, a=np.array(1), b=np.array(-1))
    for node in model.graph:
        node.name = ""
    assert isinstance(model, ir.Model)
    assert max(differences(model, {"x": normal(5, 6)}).values()) == 0.0


def test_a_row_of_numbers_is_no_bias_whatever_its_name_is() -> None:
    """Added to an image it lies along the width, as ONNX broadcasts."""
    text = "(float[1,4,3,4] x, float[4,4,1,1] w, float[4] r) => (float[1,4,3,4] y) { c = Conv (x, w) y = Add (c, r) }"  # noqa: E501
    model = read(text, w=normal(4, 4, 1, 1), r=normal(4, seed=1))
    for value in list(model.graph.initializers.values()):
        if tuple(value.shape or ()) == (4,):
            value.name = "norm/bias"
    assert max(differences(model, {"x": normal(1, 4, 3, 4)}).values()) < 1e-5


@pytest.mark.parametrize("bits", ["uint8", "uint16"])
def test_a_quantized_weight_is_read_along_either_axis(bits: str) -> None:
    text = f"""({bits}[3,8] q, float s, {bits} z, int8[8,8] v, float t) =>
      (float[3,8] y, float[3,8] u) {{
      x = DequantizeLinear (q, s, z) w = DequantizeLinear (v, t)
      y = Gemm (x, w) u = Gemm <transB = 1> (x, w) }}"""
    random = np.random.default_rng(0)
    weights = {
        "s": np.array(0.25, np.float32), "z": np.array(3, bits), "t": np.array(0.5, np.float32),
        "v": random.integers(-9, 9, (8, 8)).astype(np.int8),
    }  # fmt: skip
    model = read(text, 21, **weights)
    inputs = {"q": random.integers(0, 255, (3, 8)).astype(bits)}
    assert max(differences(model, inputs).values()) < 1e-6
