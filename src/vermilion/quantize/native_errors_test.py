"""The errors of several scales in one pass against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.native_errors import native_errors


@pytest.mark.parametrize("size", [1, 15, 16, 17, 16_384, 16_385, 50_000])
def test_errors(size: int) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    factors = [2.0, 8.0, 32.0, 64.0, 128.0]
    scaled = values.astype(np.float64) * np.array(factors)[:, None]
    expected = np.square(scaled - np.clip(np.rint(scaled), -127, 127)).sum(axis=1)
    np.testing.assert_allclose(native_errors(values, factors, 127.0), expected, rtol=1e-5)
