"""Which range of real numbers a tensor's integers cover, where scales may be any number.

All methods read the same histogram. Ranges always hold zero, so that zero has an integer.

minmax      everything that was seen
percentile  all but a given share of the values
mse         the range at which clipping and rounding together do the least squared error, what is
            clipped weighing four times; all that was seen where no other does clearly less
entropy     the range whose rounded distribution is nearest to the real one (Kullback-Leibler)
Source of `entropy`: S. Migacz, "8-bit Inference with TensorRT", GTC 2017, with 2048 bins and 128
levels; ONNX Runtime runs the same search with 128 bins, which leaves it one candidate.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.formats import IntegerFormat, Parameters
from vermilion.quantize.observe import BINS, Histogram, Range

Method = Literal["minmax", "percentile", "mse", "entropy"]
METHODS: tuple[Method, ...] = get_args(Method)

Ends = tuple[float, float]

PERCENTILE = 99.999
"""Percent of the values that `percentile` keeps. ONNX Runtime's default is the same."""

# Parts of the full range that `mse` tries.
_PARTS = np.linspace(1.0, 0.3, 29)

# What is cut off is wrong by much, in the few large values that decide, and all one way; what is
# rounded, by little each way. So an error of the first kind counts as much as four of the second,
# and less gain than a twentieth is none. (At the outputs, two to three sets of samples each,
# against counting both alike and a fifth as the least gain: PP-OCR's detection gains 3.9 dB, its
# classifier 0.5, a detector with SiLU 0.3, two segmentations 0.2; a ResNet-50 and a ViT lose 0.1,
# PP-OCR's recognition 0.2, where sets differ by one decibel; others change by less than 0.1.)
_CLIPPED_WEIGHT = 4.0
_CLEARLY_LESS = 0.95

# By how much a range of 8 bits may reach beyond what was seen. (Two sets of 64 samples each, 60 of
# them calibrated on, against none: scores of a ConvNeXt 35.4 and 22.8 → 32.6 and 35.0 dB, of a
# MobileNet 22.5 and 34.9 → 37.2 and 35.0, a keyword spotter 37.4 and 36.1 → 36.7 and 34.7, a ViT
# and an LSTM the same within half a decibel.)
_ROOM = (1.0, 1.125, 1.25, 1.5, 1.75, 2.0)

_MERGED = 8  # bins of the histogram joined into one for `mse`: 2048 are left
_ENTROPY_BINS = 2048
_ENTROPY_LEVELS = 128
_ENTROPY_STEP = 16


def range_of(histogram: Histogram | Range, method: Method, number: IntegerFormat) -> Ends:
    """Return low and high of the range that the integers shall cover."""
    ends = (histogram.lowest, histogram.highest)
    if isinstance(histogram, Range) or histogram.exponent is None or method == "minmax":
        return ends
    if method == "percentile":
        return _percentile(histogram)
    if method == "entropy":
        return _entropy(histogram)
    return _least_error(histogram, number)


def parameters_for(ends: Ends, number: IntegerFormat) -> Parameters:
    """Return scale and zero point that cover `ends`."""
    low, high = min(ends[0], 0.0), max(ends[1], 0.0)
    if number.is_signed:
        scale = max(high, -low) / number.high
        zero_point = 0
    else:
        scale = (high - low) / (number.high - number.low)
        zero_point = 0 if scale == 0.0 else round(number.low - low / scale)
    # Below the smallest normal float32, scales are lost where denormals are.
    smallest = float(np.finfo(np.float32).tiny)
    scale = 1.0 if scale == 0.0 else max(scale, smallest)
    zero_point = min(max(zero_point, number.low), number.high)
    return Parameters(number, np.asarray(scale, np.float32), zero_point)


def with_room(ends: Ends, seen: Histogram | Range, number: IntegerFormat) -> Ends:
    """Widen a range for what further samples hold, as far as coarser steps do less harm than that.

    It is so where a sample has few numbers, such as scores of classes: one that passes the range
    is off by more than all of them are rounded.
    """
    if isinstance(seen, Range):
        return ends

    def harm(factor: float) -> float:
        low, high = ends[0] * factor, ends[1] * factor
        step = float(parameters_for((low, high), number).scale)
        return step**2 / 12.0 + seen.excess(max(high, -low))

    factor = min(_ROOM, key=harm)
    return ends[0] * factor, ends[1] * factor


def _percentile(histogram: Histogram) -> Ends:
    """Cut the same share off each end that the data reaches."""
    counts = histogram.signed
    share = (1.0 - PERCENTILE / 100.0) * float(counts.sum())
    upto = np.cumsum(counts)
    first = int(np.searchsorted(upto, share, side="right"))
    last = int(np.searchsorted(upto, float(upto[-1]) - share))
    low = (first - BINS) * histogram.width
    high = (last + 1 - BINS) * histogram.width
    return max(histogram.lowest, min(low, 0.0)), min(histogram.highest, max(high, 0.0))


def _least_error(histogram: Histogram, number: IntegerFormat) -> Ends:
    counts = histogram.signed.reshape(-1, _MERGED).sum(axis=1).astype(np.float64)
    centres = (np.arange(len(counts)) + 0.5) * (histogram.width * _MERGED) - math.ldexp(
        1.0, histogram.exponent or 0
    )
    filled = np.flatnonzero(counts)
    counts, centres = counts[filled], centres[filled]
    # Exact zeros (after a Relu most of the values) stay zero whatever the scale is.
    centres = np.where(np.abs(centres) < histogram.width * _MERGED, 0.0, centres)

    def error(ends: Ends) -> float:
        parameters = parameters_for(ends, number)
        step = float(parameters.scale)
        levels = np.rint(centres / step)
        off = levels.clip(number.low - parameters.zero_point, number.high - parameters.zero_point)
        clipped = off != levels
        off *= -step
        off += centres
        off *= off
        off[clipped] *= _CLIPPED_WEIGHT
        return float(np.dot(counts, off))

    low, high = histogram.lowest, histogram.highest
    part_low = part_high = min(_PARTS, key=lambda part: error((low * part, high * part)))
    if low < 0.0 < high and not number.is_signed:
        part_low = min(_PARTS, key=lambda part: error((low * part, high * part_high)))
        part_high = min(_PARTS, key=lambda part: error((low * part_low, high * part)))
    ends = low * float(part_low), high * float(part_high)
    return ends if error(ends) < _CLEARLY_LESS * error((low, high)) else (low, high)


def _entropy(histogram: Histogram) -> Ends:
    counts = histogram.counts.reshape(_ENTROPY_BINS, -1).sum(axis=1).astype(np.float64)
    counts[0] = 0.0  # zeros say nothing about the range
    if not counts.any():
        return histogram.lowest, histogram.highest
    last = int(np.flatnonzero(counts)[-1]) + 1
    kept = [*range(_ENTROPY_LEVELS, last, _ENTROPY_STEP), max(last, _ENTROPY_LEVELS)]
    best = min(kept, key=lambda bins: _divergence(counts, bins))
    limit = best * histogram.width * BINS / _ENTROPY_BINS
    return max(histogram.lowest, -limit), min(histogram.highest, limit)


def _divergence(counts: NDArray[np.float64], bins: int) -> float:
    """Return the divergence of `counts` cut off at `bins` from what 128 levels can show of them."""
    cut = counts[:bins].copy()
    filled = cut > 0.0
    cut[-1] += counts[bins:].sum()
    starts = (np.arange(_ENTROPY_LEVELS) * bins) // _ENTROPY_LEVELS
    total = np.add.reduceat(counts[:bins], starts)
    occupied = np.add.reduceat(filled.astype(np.float64), starts)
    lengths = np.diff(np.append(starts, bins))
    spread = np.repeat(total / np.maximum(occupied, 1.0), lengths)
    shown = np.where(filled, spread, 0.0)
    both = (cut > 0.0) & (shown > 0.0)
    p, q = cut[both] / cut.sum(), shown[both] / shown.sum()
    # What was cut off and has no level to show it counts as far away.
    missing = float(cut[(cut > 0.0) & ~both].sum() / cut.sum())
    return float(np.dot(p, np.log(p / q))) + missing
