"""Products of whole numbers in blocks, whose rows are exact in 8 bits: nothing but sums is rounded.

So what saturated, or a block that was left out, is seen whatever multiplies bytes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels import TARGETS, isa_for
from packed_products import ROOM, Array, Case, close, numbers, stored, written
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights
from vermilion.codegen.kernel import Step
from vermilion.llm.engine.matrices import BlockMatrix, Matrix

UNTOUCHED = -7.0
CASES = (
    Case(96, (33,)),
    Case(272, (40, 30), block=16),
    Case(256, (64,), block=128, has_zeros=True),
    Case(96, (33,), bits=8),
    Case(272, (40, 30), bits=8, block=16, has_zeros=True),
    Case(320, (64,), bits=8, block=64),
)


def _matrix(case: Case, code: int | None = None) -> Matrix:
    """Return a matrix whose scales are exact in float16, with the same code everywhere if any."""
    parts = []
    for part in stored(case).parts:
        assert isinstance(part, BlockMatrix)
        scales = part.scales.astype(np.float16).astype(np.float32)
        codes = part.codes if code is None else np.full_like(part.codes, code)
        parts.append(replace(part, codes=codes, scales=scales))
    return Matrix(tuple(parts))


def _whole_rows(count: int, case: Case) -> Array:
    """Return rows of whole numbers, each block with ±127: what they are rounded to is the same."""
    random = np.random.default_rng(count)
    rows = random.integers(-127, 128, (count, case.depth)).astype(np.float32)
    rows[:, :: case.block] = np.where(rows[:, :: case.block] < 0, -127, 127)
    return rows


def _product(matrix: Matrix, rows: Array, target: str, row_tile: int) -> Array:
    weights = matrix.form()
    assert isinstance(weights, BlockWeights)
    form = ActivationLayout("int8", weights.depth, weights.block, weights.zero)
    memory, write, (control, prepared, codes) = written(matrix, rows, form)
    width = weights.panels * PANEL
    out = memory.tensor("out", np.full((ROOM, width), UNTOUCHED, np.float32))
    bias = memory.tensor("bias", np.full(width, 3.0, np.float32))
    spec = BlockProductSpec(weights, form, width, row_tile, has_bias=True)
    memory.run([write, Step(spec, (control, prepared, codes, out, bias), (out,))], isa_for(target))
    return memory.array(out)[:, : matrix.columns].copy()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [1, 7])  # a row alone; a tile of six, and one
@pytest.mark.parametrize("case", CASES)
def test_whole_numbers(case: Case, count: int, target: str) -> None:
    matrix, rows = _matrix(case), _whole_rows(count, case)
    found = _product(matrix, rows, target, 1 if count == 1 else 6)
    assert close(found[:count], rows.astype(np.float64) @ numbers(matrix) + 3.0, 1e-6)
    assert (found[count:] == UNTOUCHED).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("case", CASES)
def test_the_largest_numbers_saturate_nothing(case: Case, sign: int, target: str) -> None:
    matrix, rows = _matrix(case, 255), np.full((6, case.depth), 127.0 * sign, np.float32)
    wanted = rows.astype(np.float64) @ numbers(matrix) + 3.0
    assert close(_product(matrix, rows, target, 6)[:6], wanted, 1e-6)
