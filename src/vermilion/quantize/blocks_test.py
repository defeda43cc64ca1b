from __future__ import annotations

import math
import struct

import ml_dtypes
import numpy as np
import pytest

from vermilion.quantize.blocks import FORMATS, BlockFormat, round_blocks, round_to

RNG = np.random.default_rng(7)


def stored_exponent(value: float) -> int:
    """The 8 bits of float32."""
    return ((struct.unpack("<I", struct.pack("<f", value))[0] >> 23) & 255) - 127


def half_even(value: float) -> float:
    down = math.floor(value)
    off = value - down
    return down + (off > 0.5 or (off == 0.5 and down % 2 == 1))


def fixed(value: float, step: int, most: int) -> float:
    return max(-most, min(most, half_even(value / 2.0**step))) * 2.0**step


def scalar(block: list[float], row: BlockFormat) -> list[float]:
    """The definition of each format, one value at a time."""
    top = max(stored_exponent(abs(v)) for v in block)
    if row.kind == "bfp":
        return [fixed(v, top + 1 - row.mantissa, 2**row.mantissa - 1) for v in block]
    if row.kind == "microexponent":
        found = []
        for i, v in enumerate(block):
            pair = block[i - i % 2 : i - i % 2 + 2]
            shift = min(1, top - max(stored_exponent(abs(p)) for p in pair))
            v = 0.0 if abs(v) < 2.0**-126 else v
            found.append(fixed(v, top - shift + 1 - row.mantissa, 2**row.mantissa - 1))
        return found
    shared = max(top - row.emax, -127)
    found = []
    for v in block:
        scaled = v / 2.0**shared
        if row.exponent == 0:
            found.append(max(-2.0, min(row.highest, half_even(scaled * 64) / 64)) * 2.0**shared)
            continue
        own = math.frexp(scaled)[1] - 1 if scaled else -1000
        step = max(own, 2 - 2 ** (row.exponent - 1)) - row.mantissa
        element = half_even(scaled / 2.0**step) * 2.0**step
        found.append(max(-row.highest, min(row.highest, element)) * 2.0**shared)
    return found


def blocks_of(size: int) -> np.ndarray:
    wide = RNG.standard_normal((40, size)) * 2.0 ** RNG.integers(-20, 20, (40, size))
    near = RNG.standard_normal((40, size))
    edges = np.sign(near) * 2.0 ** RNG.integers(-3, 4, (20, size)).repeat(2, axis=0)
    ties = RNG.integers(-300, 300, (20, size)) / 64.0
    tiny = RNG.standard_normal((5, size)) * 1e-38
    zeros = np.zeros((1, size))
    return np.concatenate([wide, near, edges, ties, tiny, zeros]).astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_equal_to_the_definition_bit_for_bit(name: str) -> None:
    row = FORMATS[name]
    values = blocks_of(row.size)
    expected = np.array([scalar(b.tolist(), row) for b in values], np.float32)
    np.testing.assert_array_equal(round_blocks(values, row, 1), expected)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_axis_and_short_last_block(name: str, axis: int) -> None:
    row = FORMATS[name]
    values = RNG.standard_normal((35, 37, 33)).astype(np.float32)
    moved = np.moveaxis(values, axis, -1).reshape(-1, values.shape[axis])
    rows = []
    for line in moved[:: max(1, len(moved) // 20)]:
        padded = np.append(line, np.zeros(-len(line) % row.size, np.float32))
        parts = [scalar(p.tolist(), row) for p in padded.reshape(-1, row.size)]
        rows.append(np.concatenate(parts)[: len(line)])
    rounded = np.moveaxis(round_blocks(values, row, axis), axis, -1).reshape(moved.shape)
    got = rounded[:: max(1, len(moved) // 20)]
    np.testing.assert_array_equal(got, np.array(rows, np.float32))


@pytest.mark.parametrize("name", ["bf16", "fp16", *FORMATS])
def test_rounding_twice_changes_nothing(name: str) -> None:
    values = RNG.standard_normal((8, 64)).astype(np.float32)
    once = round_to(values, name, 1)
    np.testing.assert_array_equal(round_to(once, name, 1), once)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("mxfp8e4m3", ml_dtypes.float8_e4m3fn),
        ("mxfp8e5m2", ml_dtypes.float8_e5m2),
        ("mxfp6e2m3", ml_dtypes.float6_e2m3fn),
        ("mxfp6e3m2", ml_dtypes.float6_e3m2fn),
        ("mxfp4", ml_dtypes.float4_e2m1fn),
    ],
)
def test_elements_are_those_of_the_type(name: str, dtype: type) -> None:
    """With the largest in place, the scale is 1 and each element is the type's own rounding."""
    row = FORMATS[name]
    values = RNG.uniform(-row.highest, row.highest, (50, 32)).astype(np.float32)
    values[:, 0] = row.highest
    expected = values.astype(dtype).astype(np.float32)
    np.testing.assert_array_equal(round_blocks(values, row, 1), expected)


def test_bfloat16_is_half_to_even() -> None:
    halfway = np.asarray([1.00390625, 1.01171875, -1.00390625], np.float32)
    np.testing.assert_array_equal(round_to(halfway, "bf16", 0), [1.0, 1.015625, -1.0])


def test_float16_ends_where_its_range_ends() -> None:
    far = np.asarray([1e6, -1e6], np.float32)
    np.testing.assert_array_equal(round_to(far, "fp16", 0), [65504.0, -65504.0])


def test_what_is_not_finite() -> None:
    values = np.ones(32, np.float32)
    values[3] = np.inf
    bfp = round_to(values, "bfp16", 0)
    assert bfp[3] == np.inf
    assert (np.delete(bfp, 3) == 1.0).all()
    for name in ("mx9", "mxint8", "mxfp4"):
        size = FORMATS[name].size
        got = round_to(values, name, 0)
        assert np.isnan(got[:size]).all()
        assert (got[size:] == 1.0).all()


def test_single_number_is_a_block() -> None:
    assert round_to(np.asarray(0.3, np.float32), "bfp16", 0).shape == ()
