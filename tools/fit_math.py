"""Fit the polynomials of `codegen/emit/vector_math.py` and print their coefficients.

Lawson's iteration: least squares on Chebyshev nodes, where points of large error weigh more the
next time, converges to the polynomial whose largest error is least.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Function = Callable[[float], float]

NODES = 4000


def one(_: float) -> float:
    """Weigh every point alike."""
    return 1.0


@dataclass(frozen=True)
class Fit:
    """A polynomial to find: `function` on [low, high] as a sum of `powers` of the argument."""

    name: str
    function: Function
    low: float
    high: float
    powers: Sequence[int]
    weight: Function = one  # what an error at x counts, relative to the final result
    iterations: int = 60


def coefficients(fit: Fit) -> tuple[float, np.ndarray]:
    """Return the largest weighted error and the coefficients that have it."""
    angles = np.pi * (2 * np.arange(NODES) + 1) / (2 * NODES)
    x = (fit.low + fit.high) / 2 + (fit.high - fit.low) / 2 * np.cos(angles)
    y = np.array([fit.function(float(t)) for t in x])
    scale = np.array([fit.weight(float(t)) for t in x])
    basis = np.stack([x**power for power in fit.powers], 1)
    weights = np.ones(NODES)
    best = (math.inf, np.zeros(len(fit.powers)))
    for _ in range(fit.iterations):
        root = np.sqrt(weights) * scale
        found, *_ = np.linalg.lstsq(basis * root[:, None], y * root, rcond=None)
        error = np.abs((basis @ found - y) * scale)
        if error.max() < best[0]:
            best = (float(error.max()), found)
        weights *= error / error.max() + 1e-12
        weights /= weights.sum()
    return best


def exp_rest(r: float) -> float:
    """exp(r) = 1 + r + r² P(r)."""
    return (math.exp(r) - 1 - r) / (r * r) if abs(r) > 1e-4 else 0.5 + r / 6 + r * r / 24


def tanh_rest(x: float) -> float:
    """tanh(x) = x + x³ P(x²)."""
    if x <= 1e-2:
        return -1 / 3 + 2 * x**2 / 15 - 17 * x**4 / 315
    return (math.tanh(x) - x) / x**3


def erf_rest(x: float) -> float:
    """erf(x) = x P(x²)."""
    return math.erf(x) / x if x > 1e-8 else 2 / math.sqrt(math.pi)


def log_rest(f: float) -> float:
    """log(1 + f) = f - f²/2 + f³ P(f)."""
    if abs(f) <= 1e-3:
        return 1 / 3 - f / 4 + f * f / 5
    return (math.log1p(f) - f + f * f / 2) / f**3


def log_erfc(x: float) -> float:
    """erfc(x) = exp(P(x))."""
    return math.log(math.erfc(x))


HALF_LOG_2 = math.log(2) / 2 * 1.001
FITS = (
    Fit("exp", exp_rest, -HALF_LOG_2, HALF_LOG_2, range(5), lambda r: r * r),
    Fit("tanh", tanh_rest, 0, 0.63, range(0, 10, 2), lambda x: x * x),
    Fit("erf small", erf_rest, 0, 1.0, range(0, 14, 2)),
    Fit("log erfc", log_erfc, 0.98, 4.0, range(9), math.erfc),
    Fit("log", log_rest, math.sqrt(0.5) - 1, math.sqrt(2) - 1, range(8), lambda f: f * f),
    # For 1 + erf(x): the absolute error of erfc counts, from zero on.
    Fit("log erfc from 0", log_erfc, 0, 5.0, range(1, 9), math.erfc, iterations=300),
)


def main() -> None:
    """Print every fit: its name, its largest error, its coefficients as float32."""
    for fit in FITS:
        error, found = coefficients(fit)
        values = [float(np.float32(value)) for value in found]
        sys.stdout.write(f"{fit.name} {error} {values}\n")


if __name__ == "__main__":
    main()
