"""One rounding, not two: what lies just beside the middle of two narrow floats."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.literal.rounding import rounded


def test_float64_is_rounded_once_to_bfloat16() -> None:
    m, side = np.meshgrid(np.arange(128), (-1, 0, 1))
    middle = 1 + (m + 0.5) / 128
    # Float32 does not know the difference of 2⁻⁴⁵.
    values = middle + side * 2.0**-45
    up = (side > 0) | ((side == 0) & (m % 2 == 1))
    expected = 1 + (m + up) / 128
    scale = 2.0 ** np.arange(-100, 100)[:, None, None]
    for sign in (1.0, -1.0):
        found = rounded(sign * scale * values, ir.DataType.BFLOAT16).astype(np.float64)
        np.testing.assert_array_equal(found, sign * scale * expected)


def test_zeros_what_is_tiny_and_what_is_no_number() -> None:
    given = np.array([0.0, -0.0, 1e-300, -1e-300, np.inf, -np.inf, np.nan])
    found = rounded(given, ir.DataType.BFLOAT16).astype(np.float64)
    np.testing.assert_array_equal(found, [0.0, -0.0, 0.0, -0.0, np.inf, -np.inf, np.nan])
    assert np.signbit(found[:4]).tolist() == [False, True, False, True]
    one = rounded(np.array(1.1), ir.DataType.BFLOAT16)
    assert one.shape == ()
