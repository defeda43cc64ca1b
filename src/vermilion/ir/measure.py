"""How far one array is from another, in the three figures that every report uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

EXACT_DB = 200.0
"""The SQNR that stands for `no error at all`, so that JSON needs no infinity."""

# Two blocks of float64 lie in a core's second-level cache.
_BLOCK_ELEMENTS = 16 * 1024


@dataclass(frozen=True)
class Agreement:
    """How well an output agrees with its reference.

    Units: `sqnr_db` is 10·log10(Σ reference² ÷ Σ (reference - other)²), cut off at ±200;
    `max_abs_error` is in the tensor's own units.
    """

    name: str
    cosine: float
    sqnr_db: float
    max_abs_error: float
    has_nan: bool = False

    def as_json(self) -> dict[str, object]:
        """Return the keys that reports use for one tensor."""
        row: dict[str, object] = {
            "name": self.name,
            "cosine": self.cosine,
            "sqnr_db": self.sqnr_db,
            "max_abs_error": self.max_abs_error,
        }
        if self.has_nan:
            row["has_nan"] = True
        return row


def sqnr_from_sums(signal: float, noise: float) -> float:
    """Return the signal to noise ratio in dB from the two sums of squares."""
    if noise == 0.0:
        return EXACT_DB
    if signal == 0.0:
        return -EXACT_DB
    return max(-EXACT_DB, min(EXACT_DB, 10.0 * (math.log10(signal) - math.log10(noise))))


def agreement(
    name: str, reference: Array, other: Array, *, numbers_only: bool = False
) -> Agreement:
    """Compare `other` with `reference`, element by element, in float64.

    Shapes: both alike; a caller checks that first. With `numbers_only`, places where one of both
    is not a finite number do not count; else a place where one is and the other is something else
    makes the whole disagree. Equal infinities (masks in attention) are agreement, not error.
    """
    if reference.dtype.kind in "OSU":
        same = bool(np.array_equal(reference, other))
        return Agreement(name, float(same), EXACT_DB if same else -EXACT_DB, float(not same))
    a, b = reference.reshape(-1), other.reshape(-1)
    signal = other_signal = dot = noise = worst = 0.0
    unlike = nan = nan_differs = False
    for begin in range(0, a.size, _BLOCK_ELEMENTS):
        x = a[begin : begin + _BLOCK_ELEMENTS].astype(np.float64)
        y = b[begin : begin + _BLOCK_ELEMENTS].astype(np.float64)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            finite = np.isfinite(x) & np.isfinite(y)
            x_nan, y_nan = np.isnan(x), np.isnan(y)
            unlike |= not (finite | (x == y) | (x_nan & y_nan)).all()
            nan |= bool(y_nan.any())
            nan_differs |= not np.array_equal(x_nan, y_nan)
            x, y = x[finite], y[finite]
        signal += float(np.einsum("i,i->", x, x))
        other_signal += float(np.einsum("i,i->", y, y))
        dot += float(np.einsum("i,i->", x, y))
        x -= y
        noise += float(np.einsum("i,i->", x, x))
        worst = max(worst, float(np.max(np.abs(x, out=x), initial=0.0)))
    has_nan = nan and nan_differs
    if unlike and not numbers_only:
        return Agreement(name, 0.0, -EXACT_DB, math.inf, has_nan)
    if signal == 0.0 and other_signal == 0.0:
        cosine = 1.0
    elif signal == 0.0 or other_signal == 0.0:
        cosine = 0.0
    else:
        cosine = dot / math.sqrt(signal * other_signal)
    return Agreement(name, cosine, sqnr_from_sums(signal, noise), worst, has_nan)
