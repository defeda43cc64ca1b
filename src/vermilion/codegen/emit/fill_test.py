"""The border of an image is filled and its inside is left."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.fill import BorderSpec
from vermilion.codegen.kernel import Step


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("byte", [0, 117])
@pytest.mark.parametrize(
    ("size", "border"),
    [
        ((6, 7), (1, 1, 1, 1)),
        ((6, 7), (2, 0, 0, 1)),
        ((6, 7), (0, 3, 2, 0)),
        ((1, 9), (0, 0, 2, 2)),
        ((5, 1), (2, 2, 0, 0)),
        ((3, 3), (1, 1, 1, 1)),
    ],
)
def test_borders(
    size: tuple[int, int], border: tuple[int, int, int, int], byte: int, target: str
) -> None:
    height, width = size
    top, bottom, left, right = border
    memory = Memory()
    before = np.random.default_rng(0).integers(1, 100, (2, height, width, 5)).astype(np.uint8)
    view = memory.tensor("x", before, "u8")
    spec = BorderSpec(2, height, width, 5, top, bottom, left, right, byte)
    memory.run([Step(spec, (view,), (view,))], isa_for(target))
    wanted = np.full_like(before, byte)
    inside = np.s_[:, top : height - bottom, left : width - right]
    wanted[inside] = before[inside]
    assert np.array_equal(memory.array(view), wanted)
