"""Choosing scales: candidates, their errors, and what is taken."""

from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.choose import (
    LARGEST_POSITION,
    covering_position,
    native_errors,
    position_for_histogram,
    position_for_values,
)
from vermilion.quantize.formats import INT8, at_position
from vermilion.quantize.observe import Histogram


def exact_error(values: np.ndarray, position: int) -> float:
    rounded = at_position(position, INT8).to_integers(values) * 2.0**-position
    return float(np.sum((values.astype(np.float64) - rounded) ** 2))


def distributions() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {
        "normal": rng.standard_normal(40_000),
        "relu": np.maximum(rng.standard_normal(40_000), 0.0),
        "heavy tails": rng.standard_t(2.5, 40_000),
        "uniform": rng.uniform(-0.003, 0.003, 40_000),
        "one outlier": np.append(rng.standard_normal(40_000), 12.0),
    }


@pytest.mark.parametrize("name", distributions())
def test_values_get_the_position_of_least_error(name: str) -> None:
    values = distributions()[name].astype(np.float32)
    first = covering_position(float(np.abs(values).max()), INT8)
    best = min(range(first - 1, first + 4), key=lambda p: exact_error(values, p))
    assert position_for_values(values, INT8) == best


@pytest.mark.parametrize("name", distributions())
def test_histogram_decides_as_the_values_themselves(name: str) -> None:
    values = distributions()[name].astype(np.float32)
    histogram = Histogram()
    for part in np.array_split(values, 7):
        histogram.add(part)
    assert position_for_histogram(histogram, INT8) == position_for_values(values, INT8)


def test_outlier_is_clipped_where_that_is_the_smaller_error() -> None:
    values = distributions()["one outlier"].astype(np.float32)
    covering = covering_position(12.0, INT8)
    assert position_for_values(values, INT8) == covering + 1


@pytest.mark.parametrize(("value", "position"), [(6.0, 3), (3.0, 4), (1.0, 6), (-0.5, 7)])
def test_single_value_is_met_exactly(value: float, position: int) -> None:
    found = position_for_values(np.asarray([value], np.float32), INT8)
    assert found == position
    assert exact_error(np.asarray([value]), position) == 0.0


def test_zeros_have_no_position() -> None:
    assert position_for_values(np.zeros(5, np.float32), INT8) is None
    assert position_for_histogram(Histogram(), INT8) is None


@pytest.mark.parametrize("value", [3e38, 1e-44])
def test_scale_stays_a_normal_float(value: float) -> None:
    found = position_for_values(np.asarray([value], np.float32), INT8)
    assert found is not None
    assert abs(found) <= LARGEST_POSITION


def test_rounding_is_half_to_even_and_symmetric() -> None:
    values = np.asarray([0.5, 1.5, 2.5, -0.5, 300.0, -300.0], np.float32)
    got = at_position(0, INT8).to_integers(values)
    assert got.tolist() == [0, 2, 2, 0, 127, -127]
    assert got.dtype == np.int8


@pytest.mark.parametrize("size", [1, 15, 16, 17, 16_384, 16_385, 50_000])
def test_errors(size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    factors = [2.0, 8.0, 32.0, 64.0, 128.0]
    scaled = values.astype(np.float64) * np.array(factors)[:, None]
    expected = np.square(scaled - np.clip(np.rint(scaled), -127, 127)).sum(axis=1)
    np.testing.assert_allclose(native_errors(values, factors, 127.0), expected, rtol=1e-5)
