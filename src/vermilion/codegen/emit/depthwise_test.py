"""Depthwise kernels against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import DTYPES, TARGETS, Memory, isa_for
from vermilion.codegen.emit.depthwise import DepthwiseSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import Storage, allocate
from vermilion.ir.expression import Operand, apply

LAST = (0, 2, 3, 1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["f32", "bf16", "u8"])
@pytest.mark.parametrize(
    ("size", "channels", "kernel", "stride", "dilation"),
    [
        ((7, 11), 16, (3, 3), 1, 1),
        ((9, 9), 37, (5, 5), 2, 1),
        ((6, 30), 3, (1, 4), 1, 1),
        ((8, 8), 50, (2, 3), 1, 2),
        ((4, 4), 1, (4, 4), 1, 1),
    ],
)
def test_each_channel_has_its_own_kernel(
    size: tuple[int, int], channels: int, kernel: tuple[int, int], stride: int, dilation: int,
    storage: Storage, target: str,
) -> None:  # fmt: skip
    random, memory = np.random.default_rng(0), Memory()
    x = random.integers(0, 200, (2, channels, *size)) / (1 if storage == "u8" else 64)
    x = x.astype(DTYPES[storage])
    w = random.standard_normal((*kernel, channels), dtype=np.float32)
    bias = random.standard_normal(channels, dtype=np.float32)
    rows, columns = (
        (s - (k - 1) * dilation - 1) // stride + 1 for s, k in zip(size, kernel, strict=True)
    )
    wanted = np.zeros((2, channels, rows, columns)) + bias[:, None, None]
    for a in range(kernel[0]):
        for b in range(kernel[1]):
            part = x[:, :, a * dilation :, b * dilation :][:, :, ::stride, ::stride]
            taps = part[:, :, :rows, :columns].astype(np.float64)
            wanted += taps * w[a, b][:, None, None]
    source, weights = memory.tensor("x", x, storage, LAST), memory.tensor("w", w)
    biases, out = memory.tensor("b", bias), allocate("y", "f32", wanted.shape, LAST)
    spec = DepthwiseSpec(
        storage, 2, rows, columns, channels, *kernel,
        source.strides[0], source.strides[2] * stride, source.strides[3] * stride,
        source.strides[2] * dilation, source.strides[3] * dilation,
        Access("f32", (out.strides[0], out.strides[2], out.strides[3], 1)),
        (Access("f32", (0, 0, 0, 1)),), apply("add", Operand(0), Operand(1)),
    )  # fmt: skip
    memory.run([Step(spec, (source, weights, out, biases), (out,))], isa_for(target))
    assert np.abs(memory.array(out) - wanted).max() / np.abs(wanted).max() < 1e-6
