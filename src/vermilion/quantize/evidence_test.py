from __future__ import annotations

import math

import numpy as np
import pytest

from vermilion.quantize.evidence import binomial_bound, samples_needed, upper_bound


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


def test_any_part_and_all_or_nothing_meet() -> None:
    """Without the exact way: what is all or nothing is bounded as Clopper and Pearson do."""
    almost = [1.0 - 1e-9] * 3 + [0.0] * 97
    assert upper_bound(almost) == pytest.approx(binomial_bound(3, 100), rel=1e-3)


def test_the_bound_is_the_quantile_of_weighted_means() -> None:
    rng = np.random.default_rng(1)
    losses = rng.random(12) ** 3 * 0.4
    weights = rng.exponential(size=(200_000, 13))
    means = (weights / weights.sum(axis=1, keepdims=True)) @ np.append(losses, 1.0)
    assert upper_bound(losses.tolist()) == pytest.approx(np.quantile(means, 0.95), rel=5e-3)


def test_what_no_sample_lost_may_be_lost_by_others() -> None:
    """How small the parts are that a sample can lose says nothing of how many are lost at once."""
    nothing = [0.0] * 30
    assert upper_bound(nothing, 1 / 50176) == upper_bound(nothing, 1.0) == binomial_bound(0, 30)
    assert upper_bound(nothing, highest=0.5) == pytest.approx(0.5 * binomial_bound(0, 30))


def test_without_a_known_most_nothing_shows_where_nothing_was_lost() -> None:
    assert upper_bound([0.0] * 30, highest=math.inf) == math.inf
    losses = [0.0] * 20 + [0.1] * 10
    assert 0.03 < upper_bound(losses, highest=math.inf) < upper_bound(losses)


RARE = {
    "one mask in twenty is lost": (lambda g, n: (g.random(n) < 0.05) * 1.0, 0.05),
    "a third of one in twenty": (lambda g, n: (g.random(n) < 0.05) * 0.3, 0.015),
    "heavy tail": (lambda g, n: np.minimum(0.01 * g.lognormal(0.0, 2.0, n), 1.0), 0.0614),
}


@pytest.mark.parametrize("case", RARE)
@pytest.mark.parametrize("count", [11, 40])
def test_rare_total_failures_are_covered(case: str, count: int) -> None:
    draw, truth = RARE[case]
    rng = np.random.default_rng(3)
    bounds = [upper_bound(draw(rng, count).tolist(), 1 / 50176) for _ in range(300)]
    assert np.mean(np.asarray(bounds) >= truth) >= 0.94


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
    needed = samples_needed(losses, most)
    assert needed > len(losses)
    times = math.ceil(needed / len(losses))
    assert upper_bound(losses * times) <= most * 1.1
    assert upper_bound(losses * max(1, times // 3)) > most


def test_no_number_of_samples_shows_what_is_not_so() -> None:
    assert samples_needed([1.0, 0.0, 0.0], 0.1) == 0
    assert samples_needed([0.0] * 9, 0.0) == 0
    assert samples_needed([0.0] * 100, 0.1) == 100
    assert samples_needed([0.0] * 100, 0.1, highest=math.inf) == 0
