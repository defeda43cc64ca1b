"""From lists of times to the figures that reports print: percentiles, ratios, significance."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Latency:
    """Wall-clock milliseconds of one run, over all timed runs."""

    p50: float
    p90: float
    p99: float
    min: float
    mean: float

    def as_json(self) -> dict[str, float]:
        """Return the keys of the report."""
        return {
            "p50": self.p50,
            "p90": self.p90,
            "p99": self.p99,
            "min": self.min,
            "mean": self.mean,
        }


def latency(run_ms: Sequence[float]) -> Latency:
    """Return the figures of at least one run."""
    p50, p90, p99 = (float(x) for x in np.percentile(np.asarray(run_ms), (50, 90, 99)))
    return Latency(p50, p90, p99, min(run_ms), statistics.fmean(run_ms))


@dataclass(frozen=True)
class Ratio:
    """Ours ÷ theirs over pairs of turns that lay side by side: below 1 is faster than they are."""

    median: float
    q1: float
    q3: float
    least: float
    most: float
    pairs: int

    @property
    def words(self) -> str:
        """How many times as fast ours is, and the quartiles: `1.29 (1.25 to 1.33)`."""
        return f"{1 / self.median:.2f} ({1 / self.q3:.2f} to {1 / self.q1:.2f})"

    def as_json(self) -> dict[str, float | int]:
        """Return the keys of the report."""
        return {"median": self.median, "q1": self.q1, "q3": self.q3, "pairs": self.pairs}


def pair_ratios(ours_ms: Sequence[float], theirs_ms: Sequence[float]) -> tuple[float, ...]:
    """Return ours ÷ theirs, turn by turn; both lists hold one figure a round."""
    return tuple(a / b for a, b in zip(ours_ms, theirs_ms, strict=True))


def ratio(pairs: Sequence[float]) -> Ratio:
    """Return the median, the quartiles and the ends of at least one pair."""
    q1, median, q3 = (float(x) for x in np.percentile(np.asarray(pairs), (25, 50, 75)))
    return Ratio(median, q1, q3, min(pairs), max(pairs), len(pairs))


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Say the median, and the least and the most."""
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}–{high:.{digits}f})"


def chance_of_difference(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the probability that two samples of one distribution differ so much in rank.

    Mann and Whitney's test, two-sided, by its normal approximation with the correction for ties;
    1 where a sample has fewer than four values, which can prove nothing.
    Source: Mann, Whitney 1947, "On a test of whether one of two random variables is
    stochastically larger than the other".
    """
    if min(len(a), len(b)) < 4:
        return 1.0
    values = np.concatenate([np.asarray(a, np.float64), np.asarray(b, np.float64)])
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    mean_ranks = ends - (sizes - 1) / 2.0
    total, n = len(values), len(a)
    statistic = float(mean_ranks[group[:n]].sum()) - n * (n + 1) / 2.0
    ties = float((sizes.astype(np.float64) ** 3 - sizes).sum()) / (total * (total - 1.0))
    variance = n * (total - n) / 12.0 * (total + 1.0 - ties)
    if variance <= 0.0:
        return 1.0
    # Half a rank towards the middle: ranks are whole, the normal distribution is not.
    distance = max(0.0, abs(statistic - n * (total - n) / 2.0) - 0.5)
    return math.erfc(distance / math.sqrt(2.0 * variance))
