from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.formats import INT8, INT16, UINT8, IntegerFormat
from vermilion.quantize.observe import Histogram, Range
from vermilion.quantize.ranges import METHODS, Method, parameters_for, range_of, with_room

RNG = np.random.default_rng(2)


def seen(values: np.ndarray) -> Histogram:
    histogram = Histogram()
    for part in np.array_split(values.astype(np.float32), 5):
        histogram.add(part)
    return histogram


def error(values: np.ndarray, number: IntegerFormat, method: Method) -> float:
    given = parameters_for(range_of(seen(values), method, number), number)
    back = given.to_reals(given.to_integers(values.astype(np.float32)))
    return float(np.mean((values - back) ** 2))


TAILS = RNG.standard_t(3, 100_000)
RELU = np.maximum(RNG.standard_normal(100_000), 0.0)


@pytest.mark.parametrize("number", [INT8, UINT8])
@pytest.mark.parametrize("values", [TAILS, RELU, np.append(RELU, 40.0)])
def test_least_error_is_less_than_that_of_the_whole_range(
    values: np.ndarray, number: IntegerFormat
) -> None:
    assert error(values, number, "mse") <= 1.0001 * error(values, number, "minmax")


def test_least_error_clips_a_lone_outlier() -> None:
    values = np.append(np.tile(RELU, 20), 12.0)  # rounding all the others costs more than it
    assert range_of(seen(values), "mse", UINT8)[1] < 10.0
    assert range_of(seen(values), "minmax", UINT8)[1] == 12.0


def test_little_gain_is_no_reason_to_cut_off() -> None:
    """The ends of a normal distribution: a tenth less of squared error is not worth them."""
    values = seen(np.random.default_rng(5).standard_normal(30_000))
    assert range_of(values, "mse", UINT8) == range_of(values, "minmax", UINT8)


def test_percentile_cuts_the_share_that_it_says() -> None:
    values = np.sort(RNG.uniform(-1.0, 1.0, 1_000_000))
    low, high = range_of(seen(np.append(values, [50.0, -50.0])), "percentile", INT8)
    assert low == pytest.approx(-1.0, abs=0.02)
    assert high == pytest.approx(1.0, abs=0.02)


def test_entropy_searches() -> None:
    """ONNX Runtime's has one candidate, so its range is always the whole one."""
    values = np.append(RNG.standard_normal(200_000), [30.0, -30.0])
    low, high = range_of(seen(values), "entropy", INT8)
    assert 2.0 < high < 15.0
    assert low == -high


def test_entropy_keeps_a_range_that_is_used_everywhere() -> None:
    low, high = range_of(seen(RNG.uniform(-1.0, 1.0, 200_000)), "entropy", INT8)
    assert (low, high) == pytest.approx((-1.0, 1.0), abs=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_ranges_hold_zero_and_nothing_unseen(method: Method) -> None:
    for values in (RNG.uniform(3.0, 5.0, 1000), -RNG.uniform(3.0, 5.0, 1000), np.zeros(10)):
        low, high = range_of(seen(values), method, UINT8)
        assert low <= 0.0 <= high
        assert low >= min(0.0, values.min()) - 1e-6
        assert high <= max(0.0, values.max()) + 1e-6


@pytest.mark.parametrize("number", [INT8, UINT8, INT16])
@pytest.mark.parametrize("ends", [(-1.0, 3.0), (0.0, 2.0), (-5.0, 0.0), (0.0, 0.0), (0.0, 1e-44)])
def test_zero_is_exact_and_ends_are_reached(
    ends: tuple[float, float], number: IntegerFormat
) -> None:
    given = parameters_for(ends, number)
    reals = given.to_reals(given.to_integers(np.asarray([0.0, *ends], np.float32)))
    assert reals[0] == 0.0
    assert np.abs(reals[1:] - ends).max() <= float(given.scale)
    assert given.scale > 0.0


def test_only_the_ends_are_enough_for_minmax() -> None:
    ends = Range()
    ends.add(np.asarray([-2.0, 7.0], np.float32))
    assert range_of(ends, "minmax", UINT8) == (-2.0, 7.0)


def heavy(rng: np.random.Generator, samples: int, numbers: int) -> list[np.ndarray]:
    """Return scores of samples that differ much in how large they are."""
    sizes = np.exp(0.6 * rng.standard_normal((samples, 1)))
    return list((sizes * rng.standard_normal((samples, numbers))).astype(np.float32))


def test_few_numbers_of_a_sample_get_room_for_what_further_ones_hold() -> None:
    """Over many draws: with room the fresh scores keep more, and the worst draws far more."""
    kept: dict[bool, list[float]] = {False: [], True: []}
    for draw in range(60):
        rng = np.random.default_rng(draw)
        calibrated, fresh = Histogram(), np.concatenate(heavy(rng, 400, 4))
        for sample in heavy(rng, 60, 4):
            calibrated.add(sample)
        ends = range_of(calibrated, "mse", UINT8)
        for room in kept:
            given = parameters_for(with_room(ends, calibrated, UINT8) if room else ends, UINT8)
            off = fresh - given.to_reals(given.to_integers(fresh))
            kept[room].append(float(10 * np.log10(np.sum(fresh**2) / np.sum(off**2))))
    assert np.mean(kept[True]) > np.mean(kept[False]) + 1.0
    assert min(kept[True]) > min(kept[False]) + 2.0


def test_there_is_no_room_where_each_sample_shows_what_there_is() -> None:
    rng = np.random.default_rng(6)
    many, even = Histogram(), Histogram()
    for sample in heavy(rng, 60, 20_000):
        many.add(sample)
    for _ in range(60):
        even.add(np.array([1.0, -1.0, 0.5, 0.2], np.float32))
    for histogram in (many, even):
        ends = (histogram.lowest, histogram.highest)
        assert with_room(ends, histogram, UINT8) == ends
    few = Range()
    few.add(np.array([1.0, -1.0], np.float32))
    assert with_room((-1.0, 1.0), few, UINT8) == (-1.0, 1.0)
