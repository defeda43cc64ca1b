from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.native_count import LANES, native_count, native_ends

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
    table = np.zeros(2 * OFFSET, np.int64)
    native_count(values, 100.0, OFFSET, table)
    native_count(values, 100.0, OFFSET, table)  # adds to what is there
    bins = (values * np.float32(100.0) + np.float32(OFFSET)).astype(np.intp)
    np.testing.assert_array_equal(table, 2 * np.bincount(bins, minlength=2 * OFFSET))
