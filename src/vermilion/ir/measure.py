"""How far one array is from another, in the three figures that every report uses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]

EXACT_DB = 200.0
"""The SQNR that stands for `no error at all`, so that JSON needs no infinity."""


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


def agreement(name: str, reference: Array, other: Array) -> Agreement:
    """Compare `other` with `reference`, element by element, in float64.

    Shapes: both alike; a caller checks that first.
    """
    if reference.dtype.kind in "OSU":
        same = bool(np.array_equal(reference, other))
        return Agreement(name, float(same), EXACT_DB if same else -EXACT_DB, float(not same))
    a = reference.astype(np.float64).ravel()
    b = other.astype(np.float64).ravel()
    finite = np.isfinite(a) & np.isfinite(b)
    has_nan = bool(np.isnan(b).any() and not np.array_equal(np.isnan(a), np.isnan(b)))
    # Equal infinities (masks in attention) are agreement, not error.
    alike = finite | (a == b) | (np.isnan(a) & np.isnan(b))
    # What is no number would make warnings of the arithmetic, and is judged by `alike` alone.
    a, b = np.where(finite, a, 0.0), np.where(finite, b, 0.0)
    difference = a - b
    signal = float(np.sum(a**2))
    noise = float(np.sum(difference**2))
    if not alike.all():
        return Agreement(name, 0.0, -EXACT_DB, math.inf, has_nan)
    other_norm = float(np.sum(b**2))
    if signal == 0.0 and other_norm == 0.0:
        cosine = 1.0
    elif signal == 0.0 or other_norm == 0.0:
        cosine = 0.0
    else:
        dot = float(np.sum(a * b))
        cosine = dot / math.sqrt(signal * other_norm)
    worst = float(np.max(np.abs(difference), initial=0.0))
    return Agreement(name, cosine, sqnr_from_sums(signal, noise), worst, has_nan)
