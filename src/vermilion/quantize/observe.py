"""Statistics of tensors over calibration data, in one pass and in constant memory.

The range of a histogram is a power of two, the same on both sides of zero: when a larger value
comes, neighbouring bins are merged until it fits, so no earlier sample is needed again and no
count is ever split.
"""

from __future__ import annotations

import math
from copy import copy
from heapq import heappush, heappushpop

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.native_code import LANES
from vermilion.quantize.native_count import cells, native_count, native_ends, sums

BINS = 1 << 13
"""Bins on each side of zero. At the finest scale that is tried, an eighth of the one that covers
the range, a step of int8 is still four bins or more, and steps end where bins end."""

_LARGE_ELEMS = 1 << 14
"""From this size on a tensor is large enough to be counted in part."""

_MOST_COUNTED = 1 << 30
"""Values after which 32-bit counts move to 64-bit ones: half of the table for the cache to hold."""

# The range of 16 bits is at least twice what was seen, which takes one bit of them, and at most
# 16 times. (Twice gained 0.4 to 13 dB on samples not seen, on eight networks of eight.)
_HEADROOM = (2.0, 16.0)
_DEVIATIONS = 3.0
_LEAST_SAMPLES = 4

_TOP = 17  # samples with the largest magnitudes that are kept

FEW = 1 << 12
"""Numbers of a tensor that are so few that one sample says little of the largest ones."""

_SMALLEST = float(np.finfo(np.float32).smallest_subnormal)

# Keeps the factor from values to bins inside float32.
_SMALLEST_EXPONENT = -100


class Spread:
    """How much the largest magnitude differs from sample to sample: what says what others may have.

    Of few samples, the largest value is not the largest there is. Magnitudes differ by factors, so
    their logarithms are looked at; three standard deviations above the largest of them lies what
    one in hundreds of further samples passes.
    """

    def __init__(self) -> None:
        self._count = 0
        self._sum = self._squares = 0.0
        self._top: list[float] = []  # a heap, the smallest of them first

    def add(self, largest: float) -> None:
        """Take the largest magnitude of one sample."""
        if largest > 0.0:
            logarithm = math.log(largest)
            self._count += 1
            self._sum += logarithm
            self._squares += logarithm * logarithm
            if len(self._top) < _TOP:
                heappush(self._top, largest)
            else:
                heappushpop(self._top, largest)

    @property
    def count(self) -> int:
        """Samples that held more than zeros."""
        return self._count

    def headroom(self) -> float:
        """Return by what factor the range of what was seen shall be widened."""
        if self._count < _LEAST_SAMPLES:
            return _HEADROOM[0]
        low, high = _HEADROOM
        return min(max(math.exp(_DEVIATIONS * self._distribution()[1]), low), high)

    def excess(self, limit: float) -> float:
        """Return the mean square by which the largest magnitude of a sample passes `limit`.

        Beyond the largest few, what passes falls off exponentially, by their mean excess β over
        the next: of a share p above u, E[(M - c)²; M > c] = p·e^(-(c - u) ÷ β)·2β². (Source:
        J. Pickands, "Statistical Inference Using Extreme Order Statistics", 1975, with shape 0.)
        """
        kept = min(len(self._top) - 1, self._count // 8)
        if kept < _LEAST_SAMPLES:
            return 0.0
        *above, start = sorted(self._top, reverse=True)[: kept + 1]
        mean = sum(above) / kept - start
        if mean <= 0.0:
            return 0.0
        share = kept / self._count * math.exp(min(0.0, (start - limit) / mean))
        return share * 2.0 * mean * mean

    def _distribution(self) -> tuple[float, float]:
        """Return mean and standard deviation of the logarithms."""
        mean = self._sum / self._count
        variance = max(0.0, self._squares / self._count - mean * mean)
        return mean, math.sqrt(variance * self._count / (self._count - 1))


class Histogram:
    """Counts of x in 2 × `BINS` equal bins between two opposite powers of two.

    Every large value counts: of a part of them the few largest, which decide, are missing too often
    (a million values a tensor instead of all cost a trained ResNet-50 in XINT8 two decibels; one in
    four of those below half of the range costs it 0.03).
    """

    floor = 0.0
    """The range reaches down to here, whatever was counted (see `masks`)."""

    def __init__(self, every: int = 1, *, spreads: bool = False) -> None:
        """Count all values, or with `every` one group of neighbours in so many, and all large ones.

        What decides a power-of-two scale is how many values would be cut off, and for the rest how
        fine the steps are: there a part of them says the same.
        """
        self._every = every
        self.spread = Spread() if spreads else None
        self._counts = np.zeros(cells(BINS), np.int32)
        self._counted = 0  # in there
        self._earlier: NDArray[np.int64] | None = None  # by bin, all that no longer is
        # Where values count one each: large ones, and what was counted in narrower bins.
        self._apart = self._counts[-(2 * BINS + 1) :]
        self._ends = np.zeros(3, np.float32)  # lowest, highest, largest magnitude just seen
        self._factor = 1.0
        self.exponent: int | None = None  # None until a value other than 0 was seen

    @property
    def lowest(self) -> float:
        """Lowest value, or zero."""
        return float(self._ends[0]) * self._factor

    @property
    def highest(self) -> float:
        """Highest value, or zero."""
        return float(self._ends[1]) * self._factor

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return max(self.highest, -self.lowest)

    @property
    def width(self) -> float:
        """Width of a bin in the tensor's own units."""
        if self.exponent is None:
            return 0.0
        return math.ldexp(self._factor, self.exponent) / BINS

    @property
    def signed(self) -> NDArray[np.int64]:
        """Return the counts from the lowest bin to the highest."""
        recent = sums(self._counts, BINS, self._every)
        return recent if self._earlier is None else self._earlier + recent

    @property
    def counts(self) -> NDArray[np.int64]:
        """Return the counts of |x| in `BINS` bins from 0."""
        signed = self.signed
        return signed[BINS:] + signed[BINS - 1 :: -1]

    def add(self, values: NDArray[np.float32]) -> bool:
        """Count `values`; say whether all are finite. If not, the counts are of no more use."""
        flat = _as_they_lie(values)
        if self.spread is None and flat.size <= FEW:
            self.spread = Spread()
        if self.spread is not None and (ends := _ends(flat)) is not None:
            self.spread.add(max(-ends[0], ends[1]))
        whole = flat.size - flat.size % LANES
        if whole < flat.size:
            last = np.zeros(LANES, np.float32)
            last[: flat.size - whole] = flat[whole:]
            if not self._count(last, in_part=False):
                return False
            self._apart[BINS] -= LANES - (flat.size - whole)
        in_part = self._every > 1 and whole >= _LARGE_ELEMS
        for start in range(0, whole, _MOST_COUNTED):
            here = flat[start : min(start + _MOST_COUNTED, whole)]
            if self._counted + here.size > _MOST_COUNTED:
                self._earlier = self.signed
                self._counts[:] = 0
                self._counted = 0
            self._counted += here.size
            if not self._count(here, in_part=in_part):
                return False
        return True

    def excess(self, limit: float) -> float:
        """Return by how much further samples pass `limit`: a mean square, of a value of theirs.

        It is 0 where so much was seen of each sample that the few largest do not matter.
        """
        values = float(self.counts.sum())
        if self.spread is None or not self.spread.count or values > FEW * self.spread.count:
            return 0.0
        passed = self.spread.excess(limit / self._factor) * self._factor**2
        return passed * self.spread.count / values

    def times(self, factor: float) -> Histogram:
        """Return what was seen, multiplied with a number above 0; it counts no further values."""
        grown = copy(self)
        grown._factor, grown.floor = self._factor * factor, self.floor * factor
        return grown

    def _cover(self, largest: float) -> None:
        exponent = max(math.frexp(largest)[1], _SMALLEST_EXPONENT)
        if self.exponent is None:
            self.exponent = exponent
        elif exponent > self.exponent:
            merged = min(1 << min(exponent - self.exponent, 30), BINS)
            recent = sums(self._counts, BINS, self._every)
            self._counts[:] = 0
            _merge(recent, self._apart, merged)
            if self._earlier is not None:
                earlier = self._earlier
                self._earlier = np.zeros_like(earlier)
                _merge(earlier, self._earlier, merged)
            self.exponent = exponent

    def _count(self, flat: NDArray[np.float32], *, in_part: bool) -> bool:
        """Count whole groups of lanes; where a larger value comes, the range grows first."""
        while flat.size:
            factor, limit = 0.0, _SMALLEST
            if self.exponent is not None:
                factor = math.ldexp(float(BINS), -self.exponent)
                limit = math.ldexp(1.0, self.exponent) if self.exponent < 128 else math.inf
            every, apart = 1, 0.0 if self._every > 1 else math.inf
            if in_part and self.exponent is not None:
                every, apart = self._every, limit / 2.0
            done = native_count(flat, factor, BINS, limit, self._counts, self._ends, every, apart)
            flat = flat[done:]
            if flat.size:
                largest = float(self._ends[2])
                if not math.isfinite(largest):
                    return False
                self._cover(largest)
        return True


def _merge(
    counts: NDArray[np.int64], target: NDArray[np.int32] | NDArray[np.int64], merged: int
) -> None:
    """Put so many neighbouring bins together, into bins of zeros."""
    half = BINS // merged
    target[BINS : BINS + half] = counts[BINS:].reshape(-1, merged).sum(axis=1)
    target[BINS - half : BINS] = counts[:BINS].reshape(-1, merged).sum(axis=1)


def _as_they_lie(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return all values in the order of memory: it does not matter here, and copies take time."""
    return np.asarray(values, np.float32).ravel(order="K")


def _ends(flat: NDArray[np.float32]) -> tuple[float, float] | None:
    """Return the lowest and the highest of `flat` and zero, None where one is not finite."""
    if flat.size >= LANES:
        return native_ends(flat)
    low, high = float(flat.min(initial=0.0)), float(flat.max(initial=0.0))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


def are_finite(values: NDArray[np.float32]) -> bool:
    """Say whether no value is infinite or NaN: five times as fast as asking NumPy for each."""
    return _ends(_as_they_lie(values)) is not None


class Range:
    """Only the ends of what was seen: all that MinMax and 16-bit formats need."""

    floor = 0.0

    def __init__(self) -> None:
        self.lowest = 0.0
        self.highest = 0.0
        self.spread: Spread | None = Spread()

    def add(self, values: NDArray[np.float32]) -> bool:
        """Widen the range to hold `values`; say whether all are finite."""
        ends = _ends(_as_they_lie(values))
        if ends is None:
            return False
        if self.spread is not None:
            self.spread.add(max(-ends[0], ends[1]))
        self.lowest, self.highest = min(self.lowest, ends[0]), max(self.highest, ends[1])
        return True
