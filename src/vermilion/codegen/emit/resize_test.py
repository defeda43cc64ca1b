"""Resize kernels: weighted sums by table, copies where a pixel has one source."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.resize import ResizeSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, allocate

LAST = (0, 2, 3, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [1, 8, 16, 37])
@pytest.mark.parametrize(("taps", "storage"), [(2, "f32"), (4, "bf16"), (1, "f32"), (1, "u8")])
def test_sums_of_pixels(taps: int, storage: Storage, channels: int, target: str) -> None:
    memory, random = Memory(), np.random.default_rng(0)
    x = random.integers(0, 100, (2, channels, 5, 6))
    rows, columns = 7, 4
    at = [random.integers(0, size, (n, taps)) for size, n in ((5, rows), (6, columns))]
    share = [np.ones((n, taps)) if taps == 1 else random.random((n, taps)) for n in (rows, columns)]
    source, out = memory.tensor("x", x, storage, LAST), allocate("y", storage, (2, channels, rows, columns), LAST)  # fmt: skip  # noqa: E501
    size = STORAGE_BYTES[storage]
    tables = [
        memory.tensor("at", at[0] * source.strides[2] * size, "i64"),
        memory.tensor("by", share[0], "f32"),
        memory.tensor("at", at[1] * source.strides[3] * size, "i64"),
        memory.tensor("by", share[1], "f32"),
    ]
    spec = ResizeSpec(
        storage, 2, channels, rows, columns, taps, taps,
        source.strides[0], out.strides[0], out.strides[2], out.strides[3],
    )  # fmt: skip
    assert spec.copies == (taps == 1)
    memory.run([Step(spec, (source, out, *tables), (out,))], isa_for(target))
    wanted = np.zeros(out.shape)
    for a in range(taps):
        for b in range(taps):
            part = x[:, :, at[0][:, a]][:, :, :, at[1][:, b]]
            wanted += part * share[0][:, a, None] * share[1][None, :, b]
    error = np.abs(memory.array(out).astype(np.float64) - wanted).max() / np.abs(wanted).max()
    assert error < {"f32": 1e-6, "bf16": 2**-8, "u8": 0.5}[storage] if taps > 1 else error == 0
