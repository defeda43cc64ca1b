"""Pooling kernels against numpy: windows at edges, dilations, tails of channels, storage types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.pool import PoolSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import Storage, allocate

Array = NDArray[Any]
LAST = (0, 2, 3, 1)


@dataclass(frozen=True)
class Case:
    """A pool over (images, channels, rows, columns)."""

    shape: tuple[int, int, int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    whole: bool = False
    ceil: bool = False

    @property
    def result(self) -> tuple[int, int]:
        sizes = []
        for axis in range(2):
            padded = self.shape[2 + axis] + self.pads[axis] + self.pads[2 + axis]
            reach = (self.kernel[axis] - 1) * self.dilations[axis] + 1
            room = padded - reach + (self.strides[axis] - 1 if self.ceil else 0)
            sizes.append(room // self.strides[axis] + 1)
        return sizes[0], sizes[1]


CASES = (
    Case((1, 16, 8, 8), (2, 2), (2, 2)),
    Case((2, 19, 7, 9), (3, 3), (2, 2), pads=(1, 1, 1, 1)),
    Case((1, 3, 5, 5), (3, 2), (1, 2), pads=(2, 1, 0, 1)),
    Case((1, 40, 9, 6), (2, 2), dilations=(3, 2), pads=(1, 0, 1, 0)),
    Case((1, 16, 4, 4), (4, 4)),
    Case((1, 5, 6, 6), (3, 3), (3, 3), pads=(1, 1, 1, 1), whole=True),
    Case((1, 1, 1, 12), (1, 3), (1, 2)),
    # Windows that hang over the pads: those taps are not counted.
    Case((1, 19, 9, 6), (2, 3), (2, 2), whole=True, ceil=True),
    Case((2, 3, 8, 9), (3, 4), (2, 3), pads=(1, 1, 1, 1), whole=True, ceil=True),
    Case((1, 4, 9, 9), (2, 2), (3, 2), (2, 3), (1, 0, 1, 1), whole=True, ceil=True),
    Case((1, 4, 9, 10), (3, 2), (2, 3), pads=(0, 1, 2, 0), ceil=True),
)


def reference(case: Case, x: Array, operation: str) -> Array:
    n, c, h, w = case.shape
    rows, columns = case.result
    result = np.zeros((n, c, rows, columns))
    for y in range(rows):
        for z in range(columns):
            taps = [
                x[:, :, i, j]
                for a in range(case.kernel[0])
                for b in range(case.kernel[1])
                if 0 <= (i := y * case.strides[0] - case.pads[0] + a * case.dilations[0]) < h
                and 0 <= (j := z * case.strides[1] - case.pads[1] + b * case.dilations[1]) < w
            ]
            stacked = np.stack(taps).astype(np.float64)
            full = len(
                [
                    1
                    for a in range(case.kernel[0])
                    for b in range(case.kernel[1])
                    if y * case.strides[0] + a * case.dilations[0] < h + case.pads[0] + case.pads[2]
                    and z * case.strides[1] + b * case.dilations[1]
                    < w + case.pads[1] + case.pads[3]
                ]
            )
            if operation == "max":
                result[:, :, y, z] = stacked.max(0)
            else:
                result[:, :, y, z] = stacked.sum(0) / (full if case.whole else len(taps))
    return result


def pooled(
    case: Case,
    x: Array,
    operation: Literal["max", "average"],
    storage: Storage,
    target: str,
    out_storage: Storage | None = None,
) -> Array:
    memory = Memory()
    source = memory.tensor("x", x, storage, LAST)
    out_storage = out_storage or storage
    out = allocate("y", out_storage, (*case.shape[:2], *case.result), LAST)
    n, c, h, w = case.shape
    spec = PoolSpec(
        operation, storage, out_storage, n, c, h, w, *case.result, case.kernel, case.strides,
        case.dilations, case.pads, (source.strides[0], source.strides[2], source.strides[3]),
        (out.strides[0], out.strides[2], out.strides[3]),
        case.whole,
    )  # fmt: skip
    memory.run([Step(spec, (source, out), (out,))], isa_for(target))
    return memory.array(out).astype(np.float64)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", ["max", "average"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_floats(case: Case, operation: Literal["max", "average"], target: str) -> None:
    x = np.random.default_rng(0).standard_normal(case.shape, dtype=np.float32)
    got = pooled(case, x, operation, "f32", target)
    assert np.allclose(got, reference(case, x, operation), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["u8", "s8", "bf16"])
def test_the_greatest_of_other_types(storage: Storage, target: str) -> None:
    x = np.random.default_rng(1).integers(-90, 90, CASES[1].shape)
    x = x + 100 if storage == "u8" else x
    got = pooled(CASES[1], x, "max", storage, target)
    assert np.array_equal(got, reference(CASES[1], x, "max"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", ["max", "average"])
@pytest.mark.parametrize("storages", [("bf16", "f32"), ("f32", "bf16"), ("f16", "f32")], ids=str)
def test_input_and_output_of_two_float_types(
    storages: tuple[Storage, Storage], operation: Literal["max", "average"], target: str
) -> None:
    x = np.random.default_rng(2).integers(-9, 9, CASES[1].shape)
    got = pooled(CASES[1], x, operation, storages[0], target, storages[1])
    # Whole numbers up to 9 are exact in each; an average is rounded to what the output can hold.
    rtol = 2.0**-8 if storages[1] == "bf16" else 1e-6
    assert np.allclose(got, reference(CASES[1], x, operation), rtol=rtol, atol=0)
