"""Winograd's transforms are the convolution that they stand for, with its rounding bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.emit.winograd import (
    SCHEMES,
    InputTransformSpec,
    OutputTransformSpec,
    transform_weights,
)
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import allocate
from vermilion.ir.expression import Constant, Operand, apply

Array = NDArray[Any]
LAST = (0, 2, 3, 1)


def convolved(x: Array, w: Array) -> Array:
    """Return the 3×3 convolution without a border. Shapes: (N, C, H, W), (O, 3, 3, C)."""
    rows, columns = x.shape[2] - 2, x.shape[3] - 2
    total = np.zeros((x.shape[0], w.shape[0], rows, columns))
    for a in range(3):
        for b in range(3):
            part = x[:, :, a : a + rows, b : b + columns].astype(np.float64)
            total += np.einsum("nchw,oc->nohw", part, w[:, a, b])
    return total


@pytest.mark.parametrize("tile", sorted(SCHEMES))
def test_the_matrices_give_the_convolution(tile: int) -> None:
    scheme = SCHEMES[tile]
    random = np.random.default_rng(0)
    patch, kernel = random.standard_normal((scheme.patch,) * 2), random.standard_normal((3, 3))
    b, a, g = (np.array(m) for m in (scheme.input, scheme.output, scheme.weight))
    result = a @ ((b @ patch @ b.T) * (g @ kernel @ g.T)) @ a.T
    direct = [
        [(patch[y : y + 3, x : x + 3] * kernel).sum() for x in range(tile)] for y in range(tile)
    ]
    assert np.allclose(result, direct, atol=1e-12)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [3, 16, 40])
@pytest.mark.parametrize("size", [(8, 8), (5, 7), (4, 13)])
@pytest.mark.parametrize("tile", sorted(SCHEMES))
def test_the_kernels(tile: int, size: tuple[int, int], channels: int, target: str) -> None:
    isa, memory, random = isa_for(target), Memory(), np.random.default_rng(0)
    rows, columns = size
    tiles = (-(-rows // tile), -(-columns // tile))
    # The input is as large as the last patches reach; what hangs over is zeros.
    x = np.zeros((2, channels, tiles[0] * tile + 2, tiles[1] * tile + 2), np.float32)
    x[:, :, : rows + 2, : columns + 2] = random.standard_normal(
        (2, channels, rows + 2, columns + 2)
    )
    w = random.standard_normal((12, 3, 3, channels), dtype=np.float32)
    positions, count = SCHEMES[tile].positions, 2 * tiles[0] * tiles[1]
    source = memory.tensor("x", x, order=LAST)
    patches = allocate("patches", "f32", (positions, count, channels))
    s = source.strides
    into = InputTransformSpec(tile, "f32", 2, *tiles, channels, (s[0], s[2], s[3]))
    memory.run([Step(into, (source, patches), (patches,))], isa)
    sets = transform_weights(w, SCHEMES[tile])
    products = np.einsum("ptc,poc->pto", memory.array(patches), sets)
    middle = memory.tensor("products", products)
    bias = random.standard_normal(12, dtype=np.float32)
    biases, out = memory.tensor("b", bias), allocate("y", "f32", (2, 12, *size), LAST)
    t = out.strides
    relu = apply("max", apply("add", Operand(0), Operand(1)), Constant(0.0))
    back = OutputTransformSpec(
        tile, 2, *tiles, *size, 12, Access("f32", (t[0], t[2], t[3], 1)),
        (Access("f32", (0, 0, 0, 1)),), relu,
    )  # fmt: skip
    memory.run([Step(back, (middle, out, biases), (out,))], isa)
    wanted = convolved(x, w)[:, :, :rows, :columns] + bias[:, None, None]
    error = np.abs(memory.array(out) - np.maximum(wanted, 0)).max() / np.abs(wanted).max()
    assert error < 1e-5
