"""Planes become pixels, for the numbers of planes that are woven, and for no others."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import DTYPES, TARGETS, Memory, isa_for
from vermilion.codegen.emit.interleave import MOST_PLANES, interleave_step
from vermilion.codegen.tensor import Storage, allocate

LAST = (0, 2, 3, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [1, 8, 16, 21, 40])
@pytest.mark.parametrize("planes", [2, 3, 4])
@pytest.mark.parametrize(("source", "result"), [("f32", "f32"), ("f32", "bf16"), ("u8", "u8")])
def test_woven(source: Storage, result: Storage, planes: int, columns: int, target: str) -> None:
    memory = Memory()
    x = np.random.default_rng(0).integers(0, 200, (2, planes, 3, columns))
    view = memory.tensor("x", x, source)
    # With a border around: rows of the target are further apart than its pixels fill.
    whole = memory.tensor("y", np.full((2, planes, 5, columns + 4), 9), result, LAST)
    out = whole.sliced(2, 1, 3).sliced(3, 2, columns)
    step = interleave_step(view, out, ())
    assert step is not None
    memory.run([step], isa_for(target))
    wanted = np.full((2, planes, 5, columns + 4), 9).astype(DTYPES[result])
    wanted[:, :, 1:4, 2:-2] = x.astype(DTYPES[result])
    assert np.array_equal(memory.array(whole), wanted)


def test_what_is_not_woven() -> None:
    planes = allocate("x", "f32", (1, 3, 4, 5))
    pixels = allocate("y", "f32", (1, 3, 4, 5), LAST)
    assert interleave_step(planes, pixels, ()) is not None
    assert interleave_step(pixels, pixels, ()) is None, "no planes"
    assert interleave_step(planes, planes, ()) is None, "no pixels"
    many = MOST_PLANES + 1
    assert (
        interleave_step(
            allocate("x", "f32", (1, many, 4, 5)), allocate("y", "f32", (1, many, 4, 5), LAST), ()
        )
        is None
    )
    integers = allocate("y", "i32", (1, 3, 4, 5), LAST)
    assert interleave_step(planes, integers, ()) is None, "another kind of number"
