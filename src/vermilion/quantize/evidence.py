"""What samples that were held out can prove: an upper bound on a mean loss, not the mean alone.

The sample is the unit: the letters of a line, or the pixels of a picture, fail together. Nothing
lost on n samples does not say that nothing is ever lost: what happens to one sample in 3 ÷ n is
missed by n of them once in twenty times, and it may be a loss of all. So a bound needs to know the
most that a sample can lose.

all or nothing   the number of losses is binomial and the bound exact
                 (C. Clopper, E. Pearson, "The use of confidence or fiducial limits", 1934)
any part         the samples and one more, which lost the most, are weighed at random, evenly among
                 all weights that add up to one; the bound is the quantile of the weighted mean
                 (N. Gaffke, "Three test statistics for a nonparametric one-sided hypothesis on the
                 mean of a nonnegative variable", 2005). Of all or nothing it is Clopper and
                 Pearson's; no distribution is known for which it covers less than it says.
no known most    the one more is as far above the worst as the worst is above the mean: a bound on
                 what is like the samples, and none where all lost the same

`bench/bound_bench.py` counts on 12 distributions how often the truth is covered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
"""How sure a bound is, one-sided."""

_MOST_SAMPLES = 1_000_000

# Losses nearer to each other than this part of their spread are taken as one, the larger.
_ALIKE = 3e-3

# Losses that stand for all others where it is estimated how many samples would do.
_OUTLINE = 64

_NODES = 512
_STEPS = 60
_EXACT = 1e-7  # of a probability

Float64 = NDArray[np.float64]


def upper_bound(
    losses: Sequence[float],
    unit: float = 0.0,
    *,
    highest: float = 1.0,
    confidence: float = CONFIDENCE,
) -> float:
    """Return what the mean loss does not exceed, with `confidence`.

    `highest` is the most that a sample can lose, infinity where that is not known; losses below
    zero are gains. Losses come in steps of `unit`: of `highest`, each is all or nothing.
    """
    if math.isinf(highest):
        highest = _unlike(losses)
    highest = max(highest, *losses)
    if math.isinf(highest):
        return math.inf
    lost = sum(loss == highest for loss in losses)
    if unit >= highest or lost + sum(loss == 0.0 for loss in losses) == len(losses):
        events = lost if unit < highest else sum(loss > 0.0 for loss in losses)
        return highest * binomial_bound(events, len(losses), confidence)
    return _weighed_bound(*_together(losses), highest, confidence)


def samples_needed(
    losses: Sequence[float],
    most: float,
    *,
    highest: float = 1.0,
    confidence: float = CONFIDENCE,
) -> int:
    """Return how many samples, losing alike, would show that no more than `most` is lost.

    0: none.
    """
    count = len(losses)
    if upper_bound(losses, highest=highest, confidence=confidence) <= most:
        return count
    if math.isinf(highest):
        highest = _unlike(losses)
    highest = max(highest, *losses)
    if float(np.mean(losses)) >= most or most <= 0.0 or math.isinf(highest):
        return 0
    values, counts = _outline(losses)

    def shown(number: int) -> bool:
        return _weighed_bound(values, counts * (number / count), highest, confidence) <= most

    low, high = count, 2 * count
    while not shown(high):
        low, high = high, 2 * high
        if high > _MOST_SAMPLES:
            return 0
    while high - low > max(1, low // 200):
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def _unlike(losses: Sequence[float]) -> float:
    """Return what stands in for the most that a sample can lose, infinity where nothing says."""
    worst, mean = max(losses), math.fsum(losses) / len(losses)
    return worst + (worst - mean) if worst > mean else math.inf


def _together(losses: Sequence[float]) -> tuple[Float64, Float64]:
    """Return the losses that differ, smallest first, and how many there are of each."""
    ordered = np.sort(np.asarray(losses, np.float64))[::-1]
    near = _ALIKE * float(ordered.std())
    values, counts = [float(ordered[0])], [0]
    for loss in ordered.tolist():
        if values[-1] - loss > near:
            values.append(loss)
            counts.append(0)
        counts[-1] += 1
    return np.asarray(values[::-1]), np.asarray(counts[::-1], np.float64)


def _outline(losses: Sequence[float]) -> tuple[Float64, Float64]:
    """Return few losses with the same mean, and how many there are of each: for an estimate."""
    given = np.asarray(losses, np.float64)
    counts, ends = np.histogram(given, _OUTLINE)
    sums, _ = np.histogram(given, ends, weights=given)
    filled = counts > 0
    return sums[filled] / counts[filled], counts[filled].astype(np.float64)


def _weighed_bound(values: Float64, counts: Float64, highest: float, confidence: float) -> float:
    """Return the quantile of the mean of `values`, `counts` times each, and of `highest` once.

    Weights are drawn evenly: exponential numbers, divided by their sum.
    """
    all_values, shapes = np.append(values, highest), np.append(counts, 1.0)
    # No log-concave number is below its mean more often than 1 - 1/e.
    low = float(np.dot(all_values, shapes) / shapes.sum())
    high, below_low, below_high = highest, 0.0, 1.0
    for _ in range(_STEPS):
        # Where a straight line puts it, kept off the ends, which may be flat.
        part = (confidence - below_low) / max(below_high - below_low, 1e-12)
        at = low + (high - low) * min(max(part, 0.1), 0.9)
        below = _chance_below(all_values - at, shapes)
        if abs(below - confidence) < _EXACT:
            return at
        if below < confidence:
            low, below_low = at, below
        else:
            high, below_high = at, below
    return high


def _chance_below(coefficients: Float64, shapes: Float64) -> float:
    """Return the chance that Σ coefficient · Gamma(shape) is below zero.

    Source: J. Gil-Pelaez, "Note on the inversion theorem", 1951.
    """
    size = math.sqrt(float(np.dot(shapes, coefficients**2)))
    if size == 0.0:
        return 1.0
    places, weights = _nodes()
    angles = np.outer(places, coefficients / size)
    turned = np.arctan(angles) @ shapes
    shrunk = np.log1p(angles * angles) @ (0.5 * shapes)
    return 0.5 - float(np.dot(weights / places, np.sin(turned) * np.exp(-shrunk))) / math.pi


@cache
def _nodes() -> tuple[Float64, Float64]:
    """Return places from 0 to infinity and their weights: Gauss and Legendre's, bent."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    inside = (nodes + 1.0) / 2.0
    return inside / (1.0 - inside), weights / 2.0 / (1.0 - inside) ** 2


def binomial_bound(events: int, count: int, confidence: float = CONFIDENCE) -> float:
    """Return the largest rate at which `events` or fewer of `count` are no surprise."""
    if events >= count:
        return 1.0
    low, high = events / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if _at_most(events, count, middle) > 1.0 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(events: int, count: int, rate: float) -> float:
    """Return the chance of `events` or fewer among `count` at a rate between 0 and 1."""
    if rate >= 1.0:
        return 0.0
    log_rate, log_rest = math.log(max(rate, 1e-300)), math.log1p(-rate)
    return math.fsum(
        math.exp(
            math.lgamma(count + 1)
            - math.lgamma(k + 1)
            - math.lgamma(count - k + 1)
            + k * log_rate
            + (count - k) * log_rest
        )
        for k in range(events + 1)
    )
