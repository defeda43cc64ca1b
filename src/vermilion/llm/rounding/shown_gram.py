"""What a product reads, as the mean of x·xᵀ, and how much of that other texts will show as well.

Rounding that cancels errors relies on how the numbers of a row belong together. What is so in the
texts that were seen by chance alone adds to the errors on any other; how much that is, is measured
on one half of them with weights rounded for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
# A weight (depth, columns), rounded for a mean of x·xᵀ → what it stands for.
Round = Callable[[Floats, Floats], Floats]

# A few tokens have rows a hundred times as large as all others (in layer 28 of SmolLM2 the first of
# a text), and what follows divides each row by its own size: none counts for more than one of this
# many times the size that half of them have. (SmolLM2, `28.ffn_down`, the middle of the tokens of
# other prose: 18 dB without it, 24 with 1 to 2, 19 rounded to nearest.)
_MOST_SIZE = 2.0
# Parts of what relates different numbers that are tried, from the fourth on up or down as long as
# the error falls.
_PARTS = (1.0, 0.95, 0.9, 0.8, 0.65, 0.5, 0.35)
_FIRST = 3
_COLUMNS = 64  # of the weights that it is tried on
_ROWS = 4096  # multiplied at a time, so that their copy is small


def shown_gram(rows: Floats, length: int, weight: Floats, rounded: Round) -> Floats:
    """Return the mean of x·xᵀ of rows of texts of `length` tokens, less what is chance in it."""
    weighing = row_weights(rows)
    texts = np.arange(len(rows)) // length
    odd, even = (_mean_gram(rows, weighing, texts % 2 == own) for own in (1, 0))
    if texts[-1] == 0:
        return even
    some = weight[:, :: max(1, weight.shape[1] // _COLUMNS)]

    def error(at: int) -> float:
        off = (rounded(some, _related(odd, _PARTS[at])) - some).T
        return float(((off @ even) * off).sum())

    part = _PARTS[_lowest(error, _FIRST, len(_PARTS))]
    # Of twice as many rows half as much is chance.
    both: Floats = np.float32(0.5) * (odd + even)
    return _related(both, part / (part + (1 - part) / 2))


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
    """Return what each row is multiplied with before it counts: at most 1."""
    sizes = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    most = np.float32(max(_MOST_SIZE * np.median(sizes), np.finfo(np.float32).tiny))
    weights: Floats = most / np.maximum(sizes, most)
    return weights


def _mean_gram(rows: Floats, weighing: Floats, here: NDArray[np.bool_]) -> Floats:
    """Return the mean of x·xᵀ of some rows, each times its weight."""
    made = np.zeros((rows.shape[1], rows.shape[1]), np.float32)
    places = np.flatnonzero(here)
    for first in range(0, len(places), _ROWS):
        own = places[first : first + _ROWS]
        part = rows[own] * weighing[own, None]
        made += part.T @ part
    return made / np.float32(max(1, len(places)))


def _related(gram: Floats, part: float) -> Floats:
    """Return a part of what relates different numbers, and all of what each is by itself."""
    made = gram * np.float32(part)
    places = np.arange(len(gram))
    made[places, places] = gram[places, places]
    return made
