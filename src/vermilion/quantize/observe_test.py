from __future__ import annotations

import math

import numpy as np
import pytest

import vermilion.quantize.observe as observe_module
from vermilion.quantize.observe import BINS, Histogram, Range


def filled(*arrays: np.ndarray) -> Histogram:
    histogram = Histogram()
    for array in arrays:
        assert histogram.add(np.asarray(array, np.float32))
    return histogram


def test_counts_every_magnitude_in_its_bin() -> None:
    histogram = filled([0.0, 0.2501, -0.2501, 0.9990])
    assert histogram.exponent == 0
    assert histogram.counts[0] == 1
    assert histogram.counts[BINS // 4] == 2
    assert histogram.counts.sum() == 4
    assert histogram.signed[BINS + BINS // 4] == histogram.signed[BINS - BINS // 4 - 1] == 1
    assert histogram.largest == pytest.approx(0.9990)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_growing_range_gives_what_one_look_at_all_data_gives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.standard_normal(1000).astype(np.float32) * 3.0**k for k in range(-3, 4)]
    rng.shuffle(parts)  # type: ignore[arg-type]
    step_by_step, at_once = filled(*parts), filled(np.concatenate(parts))
    assert step_by_step.exponent == at_once.exponent
    # A value at an edge may be counted on either side of it, by its last bit.
    assert np.abs(step_by_step.signed - at_once.signed).sum() <= 0.002 * at_once.signed.sum()
    assert step_by_step.signed.sum() == at_once.signed.sum()


def test_range_that_jumps_over_all_bins_keeps_the_counts() -> None:
    histogram = filled([1e-20, 2e-20], [1e20])
    assert histogram.counts[0] == 2
    assert histogram.counts.sum() == 3
    assert histogram.largest == np.float32(1e20)


def test_zeros_before_the_first_value_are_counted() -> None:
    histogram = filled(np.zeros(7), [5.0])
    assert histogram.counts[0] == 7
    assert histogram.exponent == 3


def test_only_zeros_leave_the_range_open() -> None:
    assert filled(np.zeros((2, 3)), np.zeros(0)).exponent is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_says_that_values_are_not_finite(bad: float) -> None:
    assert not Histogram().add(np.asarray([1.0, bad, 2.0], np.float32))


def test_largest_and_smallest_floats_have_a_bin() -> None:
    limits = np.finfo(np.float32)
    for value in (limits.max, -limits.max, limits.smallest_subnormal, limits.tiny):
        assert filled([value]).counts.sum() == 1


def test_every_value_of_a_tensor_is_counted() -> None:
    values = np.random.default_rng(3).standard_normal(20_001).astype(np.float32)
    histogram = filled(values)
    edges = np.arange(-BINS, BINS + 1) * histogram.width
    # Values on this side of an edge may be rounded onto it: one float32 step of 2 × BINS.
    np.testing.assert_allclose(histogram.signed, np.histogram(values, edges)[0], atol=2)
    assert histogram.signed.sum() == values.size


@pytest.mark.parametrize("size", [1, 15, 16, 17, 31, 33, 4096, 4099])
def test_numbers_behind_the_last_whole_group_are_seen(size: int) -> None:
    values = np.zeros(size, np.float32)
    values[-1] = -2.5
    histogram = filled(values)
    assert (histogram.lowest, histogram.highest) == (-2.5, 0.0)
    assert histogram.signed.sum() == size
    values[-1] = np.nan
    assert not Histogram().add(values)
    assert not Range().add(values)


def test_values_just_below_the_upper_end_are_counted() -> None:
    histogram = filled([np.nextafter(np.float32(1.0), np.float32(0.0)), -0.9999])
    assert histogram.signed[-1] == 1
    assert histogram.signed.sum() == 2


def test_range_keeps_the_ends_and_zero() -> None:
    seen = Range()
    for part in ([3.0, 1.0], [2.0, 0.5], []):
        assert seen.add(np.asarray(part, np.float32))
    assert (seen.lowest, seen.highest) == (0.0, 3.0)
    assert not seen.add(np.asarray([np.nan], np.float32))
    assert not seen.add(np.asarray([np.inf], np.float32))


@pytest.mark.parametrize("every", [1, 4])
def test_a_part_of_the_values_tells_what_all_do(every: int) -> None:
    rng = np.random.default_rng(8)
    values = np.maximum(rng.standard_normal(300_007), 0.0).astype(np.float32)
    values[rng.integers(0, values.size, 50)] = 6.0
    exact, partly = Histogram(), Histogram(every)
    for part in (values, values * np.float32(2.5), values[:100]):  # the range grows
        assert exact.add(part)
        assert partly.add(part)
    assert (partly.lowest, partly.highest) == (exact.lowest, exact.highest)
    top = 3 * BINS // 2
    if every == 1:
        np.testing.assert_array_equal(partly.signed, exact.signed)
    np.testing.assert_array_equal(partly.signed[top:], exact.signed[top:])
    a, b = (h.signed[BINS:].reshape(8, -1).sum(axis=1)[:2] for h in (exact, partly))
    np.testing.assert_allclose(b, a, rtol=0.05)
    assert partly.signed.sum() == pytest.approx(exact.signed.sum(), rel=0.01)


@pytest.mark.parametrize("every", [1, 4])
def test_values_are_counted_where_they_lie(every: int) -> None:
    image = np.random.default_rng(3).standard_normal((2, 30, 40, 24)).astype(np.float32)
    lying, copied = Histogram(every), Histogram(every)
    assert lying.add(image.transpose(0, 3, 1, 2))
    assert copied.add(image)
    np.testing.assert_array_equal(lying.signed, copied.signed)
    ends = Range()
    assert ends.add(image.transpose(0, 3, 1, 2)[:, ::2])
    assert (ends.lowest, ends.highest) == (image[..., ::2].min(), image[..., ::2].max())


def test_counts_that_32_bits_cannot_hold_move_to_64(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    arrays = [rng.normal(size=9_000).astype(np.float32) * scale for scale in (1, 3, 2, 40, 1)]
    whole, moved = Histogram(), Histogram()
    for array in arrays:
        whole.add(array)
    monkeypatch.setattr(observe_module, "_MOST_COUNTED", 4_000)
    for array in arrays:
        moved.add(array)
    np.testing.assert_array_equal(moved.signed, whole.signed)
    assert moved.signed.sum() == 45_000
