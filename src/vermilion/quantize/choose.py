"""Which power of two is the scale of a tensor: the one with the least squared error.

A scale 2^-p is known by its position p. The position that just covers the range is found first,
then that one, one coarser and three finer ones are tried: a finer one clips the few largest
values and rounds all others better.
Source: AMD Quark for ONNX, power-of-two MinMSE calibration (mode `All`); of equal errors the
coarsest scale wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.formats import IntegerFormat, Parameters, at_position
from vermilion.quantize.observe import BINS, Histogram
from vermilion.quantize.plan import Plan

# One coarser, three finer. Source: as above.
_TRIED = (-1, 0, 1, 2, 3)

# 2^-126 is the smallest normal float32; scales below it are lost where denormals are.
LARGEST_POSITION = 126

_PIECE_ELEMS = 1 << 16


def covering_position(largest: float, number: IntegerFormat) -> int:
    """Give the position whose range is nearest to ±`largest`, which is above 0."""
    position = round(-math.log2(largest / number.high))
    return _limited(position)


def position_for_histogram(histogram: Histogram, number: IntegerFormat) -> int | None:
    """Give the best position for what was counted, None where all of it was zero."""
    if histogram.exponent is None:
        return None
    centres = (np.arange(BINS) + 0.5) * histogram.width
    filled = np.flatnonzero(histogram.counts)
    centres, counts = centres[filled], histogram.counts[filled]

    def error(position: int) -> float:
        scaled = np.ldexp(centres, position)
        off = scaled - np.minimum(np.rint(scaled), number.high)
        return math.ldexp(float(np.dot(counts, off * off)), -2 * position)

    return _best(covering_position(histogram.largest, number), error)


def position_for_values(values: NDArray[np.float32], number: IntegerFormat) -> int | None:
    """Give the best position for these values themselves, None where all are zero."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    largest = float(np.max(np.abs(flat), initial=0.0))
    if largest == 0.0:
        return None
    first, second = np.empty((2, min(_PIECE_ELEMS, flat.size)), np.float32)

    def error(position: int) -> float:
        total = 0.0
        factor = np.float32(2.0**position)
        for start in range(0, flat.size, _PIECE_ELEMS):
            here = flat[start : start + _PIECE_ELEMS]
            scaled, rounded = first[: here.size], second[: here.size]
            np.multiply(here, factor, out=scaled)
            np.rint(scaled, out=rounded)
            np.clip(rounded, -number.high, number.high, out=rounded)
            np.subtract(scaled, rounded, out=scaled)
            total += float(np.dot(scaled, scaled))
        return math.ldexp(total, -2 * position)

    return _best(covering_position(largest, number), error)


def choose_positions(plan: Plan, histograms: Mapping[str, Histogram]) -> dict[str, int]:
    """Give a position to every scale of the plan that has seen a value other than zero.

    Tensors that share a scale take the coarsest of their positions, so that none is clipped.
    """
    scheme = plan.scheme
    own: dict[str, int | None] = {}
    for name, histogram in histograms.items():
        own[name] = position_for_histogram(histogram, scheme.activation)
    for values, number in ((plan.weights, scheme.weight), (plan.biases, scheme.bias)):
        for value in values:
            if value.const_value is not None:
                own[str(value.name)] = position_for_values(value.const_value.numpy(), number)
    positions: dict[str, int] = {}
    for name, position in own.items():
        scale = plan.scales[name]
        if position is not None:
            positions[scale] = min(position, positions.get(scale, position))
    return positions


def parameters_of_positions(plan: Plan, positions: Mapping[str, int]) -> dict[str, Parameters]:
    """Give the parameters of every tensor of the plan."""
    scheme = plan.scheme
    rows = (
        (plan.activations, scheme.activation),
        (plan.weights, scheme.weight),
        (plan.biases, scheme.bias),
    )
    return {
        str(value.name): at_position(positions[plan.scales[str(value.name)]], number)
        for values, number in rows
        for value in values
    }


def _limited(position: int) -> int:
    return max(-LARGEST_POSITION, min(LARGEST_POSITION, position))


def _best(first: int, error: Callable[[int], float]) -> int:
    tried = [_limited(first + step) for step in _TRIED]
    return min(tried, key=error)  # the first of equals, so the coarsest
