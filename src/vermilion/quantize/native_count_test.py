from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.native_code import LANES
from vermilion.quantize.native_count import cells, native_count, native_ends, sums

RNG = np.random.default_rng(1)
OFFSET = 512


@pytest.mark.parametrize("size", [LANES, LANES + 1, 3 * LANES, 1000])
@pytest.mark.parametrize("shift", [-5.0, 0.0, 5.0])
def test_ends_are_those_of_the_values_and_zero(size: int, shift: float) -> None:
    values = (RNG.standard_normal(size) + shift).astype(np.float32)
    expected = (min(float(values.min()), 0.0), max(float(values.max()), 0.0))
    assert native_ends(values) == expected


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, LANES - 1, LANES, 3 * LANES + 1])
def test_one_value_that_is_not_finite_is_found(bad: float, place: int) -> None:
    values = np.ones(3 * LANES + 2, np.float32)
    values[place] = bad
    assert native_ends(values) is None
    values[place] = np.finfo(np.float32).max
    assert native_ends(values) == (0.0, float(np.finfo(np.float32).max))


@pytest.mark.parametrize("kind", ["normal", "half zeros", "one value"])
def test_every_value_finds_its_bin(kind: str) -> None:
    values = RNG.standard_normal(50 * LANES).astype(np.float32)
    if kind == "half zeros":
        values = np.maximum(values, 0.0)
    if kind == "one value":
        values = np.full_like(values, 0.37)
    table, ends = np.zeros(cells(OFFSET), np.int32), np.zeros(3, np.float32)
    for _ in range(2):  # adds to what is there
        assert native_count(values, 100.0, OFFSET, 5.12, table, ends) == values.size
    bins = (values * np.float32(100.0) + np.float32(OFFSET)).astype(np.intp)
    expected = 2 * np.bincount(bins, minlength=2 * OFFSET)
    np.testing.assert_array_equal(sums(table, OFFSET), expected)
    assert ends[:2].tolist() == [min(values.min(), 0.0), values.max()]
    assert ends[2] == np.abs(values).max()


@pytest.mark.parametrize("place", [0, 5000, 9999])
@pytest.mark.parametrize("large", [8.0, np.nan, -np.inf])
def test_counting_stops_before_a_block_that_does_not_fit(place: int, large: float) -> None:
    values = RNG.uniform(-1.0, 1.0, 10_000).astype(np.float32)
    values[place] = large
    table, ends = np.zeros(cells(OFFSET), np.int32), np.zeros(3, np.float32)
    done = native_count(values, OFFSET / 2.0, OFFSET, 2.0, table, ends)
    assert place - 2048 < done <= place
    assert table.sum() == done
    assert not abs(ends[2]) < 2.0


def counted(groups: int, every: int) -> np.ndarray:
    """Which groups count: their multiples of the golden ratio fall into the first part of 1."""
    return np.arange(groups, dtype=np.uint64) * 2654435769 % 2**32 < 2**32 // every


@pytest.mark.parametrize("channels", [16, 32, 48, 64, 80, 128, 512, 1024])
def test_no_channel_is_left_out_where_channels_lie_last(channels: int) -> None:
    vectors = channels // LANES
    seen = counted(196 * vectors, 4).reshape(196, vectors).sum(axis=0)
    assert seen.min() >= 35
    assert seen.max() <= 63  # 49 of 196 pixels on average


def test_of_small_values_a_part_is_counted_and_of_large_ones_all() -> None:
    values = RNG.standard_normal(4096 * LANES).astype(np.float32)
    table, ends = np.zeros(cells(OFFSET), np.int32), np.zeros(3, np.float32)
    assert native_count(values, 60.0, OFFSET, 8.5, table, ends, 4, 2.0) == values.size
    found = sums(table, OFFSET, 4)
    bins = (values * np.float32(60.0) + np.float32(OFFSET)).astype(np.intp)
    expected = np.bincount(bins, minlength=2 * OFFSET)
    large = np.abs(np.arange(2 * OFFSET) - OFFSET + 0.5) > 121.0
    np.testing.assert_array_equal(found[large], expected[large])
    part = bins.reshape(-1, LANES)[counted(4096, 4)]
    expected_small = 4 * np.bincount(part.reshape(-1), minlength=2 * OFFSET)
    np.testing.assert_array_equal(found[~large][2:-2], expected_small[~large][2:-2])
