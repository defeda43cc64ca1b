"""Functions computed in float64 inside: right over all of float32, ends of domains included."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import TARGETS
from vermilion.codegen.emit.vector_math_test import computed

Array = NDArray[np.float64]

# numpy warns of what is tested here: casts of NaN, powers of 0.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh,
    "acosh": np.arccosh, "atanh": np.arctanh,
}  # fmt: skip
EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.99999994, 1.0000001, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 1.2e-38,
    -1e-10, 3.4e38, -3.4e38, 89.5, -88.7, 0.0625, 0.41421357, 2.4142137, 1.5707964, 1.0995116e12,
    1.0995117e12, -1e13, 2.0**120,
]  # fmt: skip


def samples() -> NDArray[np.float32]:
    random = np.random.default_rng(1)
    bits = random.integers(0, 2**32, 30_000, dtype=np.uint32).view(np.float32)
    ranges = [random.uniform(-size, size, 5_000) for size in (0.1, 1.5, 20, 90, 1e6, 1e14)]
    return np.concatenate([np.array(EDGES), bits, *ranges]).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", FUNCTIONS)
def test_rounded_once(operation: str, target: str) -> None:
    x = samples()
    exact = FUNCTIONS[operation](x.astype(np.float64))
    wanted = exact.astype(np.float32)
    found = computed(operation, x, target)
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    is_end = ~np.isfinite(wanted)
    assert np.array_equal(found[is_end], wanted[is_end], equal_nan=True)
    unit = np.spacing(np.abs(wanted[~is_end])).astype(np.float64)
    assert (np.abs(found[~is_end] - exact[~is_end]) / unit).max() < 0.501


@pytest.mark.parametrize("operation", ["sin", "tan", "asin", "atan", "sinh", "asinh", "atanh"])
def test_zeros_keep_their_sign(operation: str) -> None:
    found = computed(operation, np.array([0.0, -0.0], np.float32), "cpu")
    assert list(np.signbit(found)) == [False, True]
