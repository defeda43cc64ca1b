from __future__ import annotations

import numpy as np
import pytest

from vermilion.bench.figures import chance_of_difference, latency, pair_ratios, ratio, spread


def test_latency_gives_percentiles_of_all_runs() -> None:
    found = latency([float(ms) for ms in range(1, 102)])
    assert (found.p50, found.p90, found.p99) == (51.0, 91.0, 100.0)
    assert (found.min, found.mean) == (1.0, 51.0)
    assert set(found.as_json()) == {"p50", "p90", "p99", "min", "mean"}


def test_a_ratio_is_taken_within_a_round() -> None:
    """A machine that becomes three times slower half-way changes no ratio."""
    ours, theirs = [2.0, 2.0, 6.0, 6.0], [4.0, 4.0, 12.0, 12.0]
    found = ratio(pair_ratios(ours, theirs))
    assert (found.median, found.q1, found.q3, found.pairs) == (0.5, 0.5, 0.5, 4)


def test_rounds_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="longer"):
        pair_ratios([1.0], [1.0, 2.0])


def test_the_quartiles_say_how_far_pairs_lie_apart() -> None:
    found = ratio([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (found.q1, found.median, found.q3) == (2.0, 3.0, 4.0)
    assert (found.least, found.most, found.pairs) == (1.0, 5.0, 5)
    assert set(found.as_json()) == {"median", "q1", "q3", "pairs"}


def test_a_spread_is_the_median_and_the_ends() -> None:
    assert spread([3.0, 1.0, 8.04]) == "3.0 (1.0–8.0)"
    assert spread([0.5], 2) == "0.50 (0.50–0.50)"


def test_chance_matches_the_published_normal_approximation() -> None:
    """U = 3 for these ranks; z = (32 - 3 - 0.5) ÷ √(8·8·17 ÷ 12) = 2.993."""
    a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0]
    b = [7.0, 9.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]
    assert chance_of_difference(a, b) == pytest.approx(0.00276, abs=2e-5)
    assert chance_of_difference(b, a) == chance_of_difference(a, b)


def test_one_distribution_is_called_different_about_as_often_as_promised() -> None:
    random = np.random.default_rng(0)
    called = [
        chance_of_difference(list(random.normal(size=30)), list(random.normal(size=30))) < 0.05
        for _ in range(400)
    ]
    assert 0.02 < np.mean(called) < 0.08


@pytest.mark.parametrize(("a", "b"), [([1.0] * 9, [1.0] * 9), ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0])])
def test_equal_or_few_values_prove_nothing(a: list[float], b: list[float]) -> None:
    assert chance_of_difference(a, b) == 1.0
