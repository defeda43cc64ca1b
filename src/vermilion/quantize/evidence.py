"""What samples that were held out can prove: an upper bound on a mean loss, not the mean alone.

A loss is what one sample lost: for a yes or no per sample 0 or 1, for a rate over many decisions
any part of it. Nothing lost on n samples does not say that nothing is ever lost: what happens to
one sample in 3 ÷ n is missed by n of them once in twenty times.

Where all samples that lost anything lost the same, their number is binomial and the bound exact.
Source: C. Clopper, E. Pearson, "The use of confidence or fiducial limits illustrated in the case
of the binomial", 1934. Otherwise it is Student's bound on the mean, with one more sample than there
were, which lost as much as the worst: few losses are skewed, and their spread is seen too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev

CONFIDENCE = 0.95
"""How sure a bound is, one-sided."""

_MOST_SAMPLES = 1_000_000


def upper_bound(losses: Sequence[float], unit: float) -> float:
    """Return what the mean loss does not exceed, with `CONFIDENCE`.

    `unit` is the least that a sample can lose; it counts where none of these lost anything.
    """
    lost = [loss for loss in losses if loss != 0.0]
    if not lost:
        return unit * binomial_bound(0, len(losses))
    if min(lost) > 0.0 and max(lost) - min(lost) <= 1e-6 * max(lost):
        return lost[0] * binomial_bound(len(lost), len(losses))
    more = [*losses, max(*lost, unit)]
    return fmean(more) + student_quantile(len(more) - 1) * stdev(more) / math.sqrt(len(more))


def samples_needed(losses: Sequence[float], unit: float, most: float) -> int:
    """Return how many samples, losing alike, would show that no more than `most` is lost.

    0: none.
    """
    count, mean = len(losses), fmean(losses)
    bound = upper_bound(losses, unit)
    if bound <= most:
        return count
    if mean >= most or most <= 0.0:
        return 0
    lost = [loss for loss in losses if loss != 0.0]
    if lost and (min(lost) < 0.0 or max(lost) - min(lost) > 1e-6 * max(lost)):
        # What is between mean and bound shrinks with the root of the number.
        return math.ceil(count * ((bound - mean) / (most - mean)) ** 2)
    size, share = (lost[0] if lost else unit), len(lost) / count
    low, high = count, count
    while size * binomial_bound(math.ceil(share * high), high) > most:
        low, high = high, 2 * high
        if high > _MOST_SAMPLES:
            return 0
    while high - low > 1:
        middle = (low + high) // 2
        shown = size * binomial_bound(math.ceil(share * middle), middle) <= most
        low, high = (low, middle) if shown else (middle, high)
    return high


def binomial_bound(events: int, count: int) -> float:
    """Return the largest rate at which `events` or fewer of `count` are no surprise."""
    if events >= count:
        return 1.0
    low, high = events / count, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        if _at_most(events, count, middle) > 1.0 - CONFIDENCE:
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


def student_quantile(freedom: int) -> float:
    """Return Student's quantile at `CONFIDENCE`.

    Source: M. Abramowitz, I. Stegun, "Handbook of Mathematical Functions", 26.7.5; three terms are
    right to 1 in 100 from three degrees of freedom on.
    """
    z = NormalDist().inv_cdf(CONFIDENCE)
    first = (z**3 + z) / 4.0
    second = (5.0 * z**5 + 16.0 * z**3 + 3.0 * z) / 96.0
    third = (3.0 * z**7 + 19.0 * z**5 + 17.0 * z**3 - 15.0 * z) / 384.0
    return z + first / freedom + second / freedom**2 + third / freedom**3
