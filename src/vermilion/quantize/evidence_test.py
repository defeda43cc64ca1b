from __future__ import annotations

import math

import numpy as np
import pytest

from vermilion.quantize.evidence import (
    binomial_bound,
    samples_needed,
    student_quantile,
    upper_bound,
)


@pytest.mark.parametrize(
    ("events", "count", "expected"),
    # Tables of Clopper and Pearson's one-sided 95 % limit.
    [(0, 10, 0.2589), (1, 10, 0.3942), (5, 10, 0.7776), (0, 150, 0.01977), (3, 100, 0.0757)],
)
def test_bounds_are_those_of_clopper_and_pearson(events: int, count: int, expected: float) -> None:
    assert binomial_bound(events, count) == pytest.approx(expected, rel=2e-3)
    assert upper_bound([1.0] * events + [0.0] * (count - events), 1.0) == pytest.approx(
        expected, rel=2e-3
    )


def test_all_lost_is_bounded_by_all() -> None:
    assert binomial_bound(4, 4) == 1.0


@pytest.mark.parametrize(
    ("freedom", "expected"), [(3, 2.353), (5, 2.015), (10, 1.812), (30, 1.697), (1000, 1.646)]
)
def test_quantiles_are_students(freedom: int, expected: float) -> None:
    assert student_quantile(freedom) == pytest.approx(expected, rel=5e-3)


def test_smaller_decisions_show_more() -> None:
    nothing = [0.0] * 30
    assert upper_bound(nothing, 0.04) == pytest.approx(0.04 * upper_bound(nothing, 1.0))


@pytest.mark.parametrize("spread", ["one size", "any size", "gains too"])
def test_a_bound_is_above_the_truth_nineteen_times_in_twenty(spread: str) -> None:
    """Fresh draws with a known mean: how often the bound lies below it."""
    rng = np.random.default_rng(7)
    below, tries = 0, 600
    for _ in range(tries):
        happens = rng.random(120) < 0.08
        if spread == "one size":
            losses, truth = happens * 1.0, 0.08
        elif spread == "any size":
            losses, truth = happens * rng.integers(1, 10, 120) / 10.0, 0.08 * 0.5
        else:
            losses, truth = happens * rng.choice([1.0, 1.0, 1.0, -1.0], 120), 0.08 * 0.5
        below += upper_bound([float(x) for x in losses], 0.1) < truth
    assert below <= 0.05 * tries + 3.0 * math.sqrt(tries * 0.05 * 0.95)


@pytest.mark.parametrize("losses", [[0.0] * 20, [1.0] + [0.0] * 99, [0.3, 0.1] + [0.0] * 38])
def test_so_many_samples_that_lose_alike_are_enough(losses: list[float]) -> None:
    most = 0.03
    unit = 0.1 if len(losses) == 40 else 1.0
    needed = samples_needed(losses, unit, most)
    assert needed > len(losses)
    times = math.ceil(needed / len(losses))
    assert upper_bound(losses * times, unit) <= most * 1.1
    assert upper_bound(losses * max(1, times // 3), unit) > most


def test_no_number_of_samples_shows_what_is_not_so() -> None:
    assert samples_needed([1.0, 0.0, 0.0], 1.0, 0.1) == 0
    assert samples_needed([0.0] * 9, 1.0, 0.0) == 0
    assert samples_needed([0.0] * 100, 1.0, 0.1) == 100
