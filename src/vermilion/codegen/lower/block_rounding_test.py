"""Rounding to blocks that share an exponent, against a reference that takes one value at a time."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.lower.block_rounding import rounding_step
from vermilion.codegen.tensor import Storage, allocate

Float32 = NDArray[np.float32]


def one_by_one(values: Float32, axis: int) -> Float32:
    """Round as the definition says: exponents read off bits, exact fractions, half to even."""
    result = np.array(values)
    moved = np.moveaxis(result, axis, -1)
    for place in np.ndindex(moved.shape[:-1]):
        row = moved[place]
        for start in range(0, len(row), 8):
            block = [float(x) for x in row[start : start + 8]]
            fields = [struct.unpack("<I", struct.pack("<f", x))[0] >> 23 & 0xFF for x in block]
            exponent = max(0 if field == 255 else field for field in fields)
            for at, x in enumerate(block):
                if math.isfinite(x):
                    steps = round(math.ldexp(x, 133 - exponent))
                    steps = max(-127, min(127, steps))
                    row[start + at] = math.copysign(math.ldexp(abs(steps), exponent - 133), x)
    return result


def wide(*shape: int) -> Float32:
    """Return numbers of all sizes that float32 has, and some that are not finite."""
    random = np.random.default_rng(5)
    bits = random.integers(0, 2**32, shape, np.uint32)
    # Within a block exponents are near each other, or all but the largest would be 0.
    near = random.integers(0, 255, (*shape[:-1], 1)) + random.integers(-9, 1, shape)
    bits = (bits & 0x807FFFFF) | (np.clip(near, 0, 255).astype(np.uint32) << 23)
    return bits.view(np.float32)


def normal(*shape: int) -> Float32:
    return np.random.default_rng(6).standard_normal(shape).astype(np.float32)


def same_bits(found: Float32, wanted: Float32) -> None:
    both_nan = np.isnan(found) & np.isnan(wanted)
    bits = [np.ascontiguousarray(array).view(np.uint32) for array in (found, wanted)]
    np.testing.assert_array_equal(np.where(both_nan, 0, bits[0]), np.where(both_nan, 0, bits[1]))


@pytest.mark.parametrize("storage", ["f32", "bf16"])
@pytest.mark.parametrize(
    ("shape", "axis", "order"),
    [
        ((3, 64), 1, None),
        ((3, 37), 1, None),  # the last block is short
        ((9000,), 0, None),  # several units of one row
        ((5, 9001), 1, None),
        ((64, 37), 0, None),  # across vectors
        ((3, 21, 5, 19), 1, None),
        ((2, 3, 5, 40), 1, None),  # three channels of an image in planes
        ((2, 24, 5, 7), 1, (0, 2, 3, 1)),  # channels last: blocks follow each other
        ((2, 20, 5, 7), 1, (0, 2, 3, 1)),
        ((2, 1, 1, 8), 3, None),
        ((1,), 0, None),
    ],
)
@pytest.mark.parametrize("target", TARGETS)
def test_rounds_every_value_as_defined(
    target: str,
    shape: tuple[int, ...],
    axis: int,
    order: tuple[int, ...] | None,
    storage: Storage,
) -> None:
    isa, memory = isa_for(target), Memory()
    for values in (normal(*shape), wide(*shape)):
        source = memory.tensor("x", values, "f32", order)
        result = allocate("y", storage, shape, order)
        memory.run([rounding_step(source, result, axis, "x")], isa)
        same_bits(memory.array(result).astype(np.float32), one_by_one(values, axis))


def test_reads_bfloat16() -> None:
    isa, memory = isa_for("cpu"), Memory()
    source = memory.tensor("x", normal(4, 40), "bf16")
    result = allocate("y", "bf16", (4, 40))
    memory.run([rounding_step(source, result, 1, "x")], isa)
    wanted = one_by_one(memory.array(source).astype(np.float32), 1)
    same_bits(memory.array(result).astype(np.float32), wanted)


def test_leaves_what_lies_around_an_image() -> None:
    isa, memory = isa_for("cpu"), Memory()
    whole = allocate("y", "bf16", (1, 24, 6, 7), (0, 2, 3, 1))
    inside = whole.sliced(2, 1, 4).sliced(3, 1, 5)
    source = memory.tensor("x", normal(1, 24, 4, 5), "f32", (0, 2, 3, 1))
    memory.array(whole)[...] = 7.0
    memory.run([rounding_step(source, inside, 1, "x")], isa)
    same_bits(memory.array(inside).astype(np.float32), one_by_one(memory.array(source).copy(), 1))
    around = memory.array(whole).astype(np.float32)
    around[:, :, 1:5, 1:6] = 7.0
    np.testing.assert_array_equal(around, 7.0)
