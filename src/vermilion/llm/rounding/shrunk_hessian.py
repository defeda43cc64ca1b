"""The Hessian of GPTQ, the mean of x·xᵀ, with its correlations shrunk by cross-validation.

Rounding that cancels errors relies on correlations between the inputs of a product. Those that a
calibration text has by chance add to the errors on any other text. How far to shrink them is found
on one half of the texts with weights rounded for the other half.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
# A weight (depth, columns), rounded for a mean of x·xᵀ → what it stands for.
Round = Callable[[Floats, Floats], Floats]

# A few tokens have activations a hundred times as large as all others (in layer 28 of SmolLM2 the
# first of a text), and the normalization after them divides each row by its norm: no row counts for
# more than one of this many times the median norm. (SmolLM2, `28.ffn_down`, the median token of
# other prose: 18 dB without it, 24 with 1 to 2, 19 rounded to nearest.)
_MOST_NORM = 2.0
# Factors of the off-diagonal elements, tried from the fourth on up or down while the error falls.
_FACTORS = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.35)
_FIRST = 3
_COLUMNS = 64  # of the weights that it is tried on
_ROWS = 4096  # multiplied at a time, so that their copy is small


def shrunk_hessian(rows: Floats, length: int, weight: Floats, rounded: Round) -> Floats:
    """Return the mean of x·xᵀ over texts of `length` tokens, with its correlations shrunk."""
    weighing = row_weights(rows)
    texts = np.arange(len(rows)) // length
    odd, even = (mean_hessian(rows, weighing, texts % 2 == own) for own in (1, 0))
    if texts[-1] == 0:
        return even
    some = weight[:, :: max(1, weight.shape[1] // _COLUMNS)]

    def error(at: int) -> float:
        off = (rounded(some, shrunk(odd, _FACTORS[at])) - some).T
        return float(((off @ even) * off).sum())

    factor = _FACTORS[_lowest(error, _FIRST, len(_FACTORS))]
    # Twice as many rows have half the chance correlations.
    both: Floats = np.float32(0.5) * (odd + even)
    return shrunk(both, factor / (factor + (1 - factor) / 2))


def _lowest(error: Callable[[int], float], first: int, count: int) -> int:
    """Return where an error that falls and then rises is lowest, of places 0 to `count` - 1."""
    found = cache(error)
    at = first
    while at + 1 < count and found(at + 1) < found(at):
        at += 1
    while at > 0 and found(at - 1) < found(at):
        at -= 1
    return at


def row_weights(rows: Floats) -> Floats:
    """Return a weight of at most 1 for each row, which limits the largest norms."""
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    most = np.float32(max(_MOST_NORM * np.median(norms), np.finfo(np.float32).tiny))
    weights: Floats = most / np.maximum(norms, most)
    return weights


def mean_hessian(rows: Floats, weighing: Floats, here: NDArray[np.bool_]) -> Floats:
    """Return the mean of x·xᵀ of some rows, each times its weight."""
    made = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
    places = np.flatnonzero(here)
    for first in range(0, len(places), _ROWS):
        own = places[first : first + _ROWS]
        part = rows[own] * weighing[own, None]
        made += part.T @ part
    return made / np.float32(max(1, len(places)))


def shrunk(hessian: Floats, factor: float) -> Floats:
    """Return the matrix with its off-diagonal elements multiplied by a factor."""
    made = hessian * np.float32(factor)
    places = np.arange(len(hessian))
    made[places, places] = hessian[places, places]
    return made
