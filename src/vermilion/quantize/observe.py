"""Statistics of tensors over calibration data, in one pass and in constant memory.

The range of a histogram is a power of two, the same on both sides of zero: when a larger value
comes, neighbouring bins are merged until it fits, so no earlier sample is needed again and no
count is ever split.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.native_count import LANES, native_count, native_ends

BINS = 1 << 13
"""Bins on each side of zero. At the finest scale that is tried, an eighth of the one that covers
the range, a step of int8 is still four bins or more, and steps end where bins end."""

# Keeps the factor from values to bins inside float32.
_SMALLEST_EXPONENT = -100


class Histogram:
    """Counts of x in 2 × `BINS` equal bins between two opposite powers of two.

    Every value counts: of a part of them the few large ones, which decide, are missing too often
    (a million values a tensor instead of all cost a trained ResNet-50 in XINT8 two decibels).
    """

    def __init__(self) -> None:
        # One bin more: what lies just below the upper end may be rounded onto it.
        self._counts: NDArray[np.int64] = np.zeros(2 * BINS + 1, np.int64)
        self.lowest = 0.0
        self.highest = 0.0
        self.exponent: int | None = None  # None until a value other than 0 was seen

    @property
    def largest(self) -> float:
        """Largest magnitude."""
        return max(self.highest, -self.lowest)

    @property
    def width(self) -> float:
        """Width of a bin in the tensor's own units."""
        return 0.0 if self.exponent is None else math.ldexp(1.0, self.exponent) / BINS

    @property
    def signed(self) -> NDArray[np.int64]:
        """Give the counts from the lowest bin to the highest."""
        counts = self._counts[:-1].copy()
        counts[-1] += self._counts[-1]
        return counts

    @property
    def counts(self) -> NDArray[np.int64]:
        """Give the counts of |x| in `BINS` bins from 0."""
        signed = self.signed
        return signed[BINS:] + signed[BINS - 1 :: -1]

    def add(self, values: NDArray[np.float32]) -> bool:
        """Count `values`; say whether all are finite (if not, none is counted)."""
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
        ends = _ends(flat)
        if ends is None:
            return False
        low, high = ends
        largest = max(high, -low)
        if largest > 0.0:
            self._cover(largest)
        self.lowest, self.highest = min(self.lowest, low), max(self.highest, high)
        self._count(flat)
        return True

    def _cover(self, largest: float) -> None:
        exponent = max(math.frexp(largest)[1], _SMALLEST_EXPONENT)
        if self.exponent is None:
            self.exponent = exponent
        elif exponent > self.exponent:
            merged = min(1 << min(exponent - self.exponent, 30), BINS)
            signed = self.signed
            half = BINS // merged
            counts = np.zeros(2 * BINS + 1, np.int64)
            counts[BINS : BINS + half] = signed[BINS:].reshape(-1, merged).sum(axis=1)
            counts[BINS - half : BINS] = signed[:BINS].reshape(-1, merged).sum(axis=1)
            self._counts = counts
            self.exponent = exponent

    def _count(self, flat: NDArray[np.float32]) -> None:
        factor = 0.0 if self.exponent is None else math.ldexp(float(BINS), -self.exponent)
        whole = flat.size - flat.size % LANES
        if whole:
            native_count(flat[:whole], factor, BINS, self._counts)
        for value in flat[whole:]:
            self._counts[int(np.float32(value * np.float32(factor)) + np.float32(BINS))] += 1


def _ends(flat: NDArray[np.float32]) -> tuple[float, float] | None:
    """Give the lowest and the highest of `flat` and zero, None where one is not finite."""
    if flat.size >= LANES:
        return native_ends(flat)
    low, high = float(flat.min(initial=0.0)), float(flat.max(initial=0.0))
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None


class Range:
    """Only the ends of what was seen: all that MinMax and 16-bit formats need."""

    def __init__(self) -> None:
        self.lowest = 0.0
        self.highest = 0.0

    def add(self, values: NDArray[np.float32]) -> bool:
        """Widen the range to hold `values`; say whether all are finite."""
        ends = _ends(np.ascontiguousarray(values, np.float32).reshape(-1))
        if ends is None:
            return False
        self.lowest, self.highest = min(self.lowest, ends[0]), max(self.highest, ends[1])
        return True
