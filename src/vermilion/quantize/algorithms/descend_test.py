from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.algorithms.descend import descend

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("zero", [0.0, 8.0])
def test_the_error_at_the_output_falls(zero: float) -> None:
    read = RNG.standard_normal((400, 32)) @ RNG.standard_normal((32, 32))
    gram = (read.T @ read / 400).astype(np.float32)
    weight = RNG.standard_normal((20, 32)).astype(np.float32)
    scales = np.abs(weight).reshape(20, 2, 16).max(axis=2) / 7.0
    zeros = np.full((20, 2), zero, np.float32)
    limits = (int(zero) - 8, int(zero) + 7)
    codes = np.rint(weight / np.repeat(scales, 16, axis=1)) + np.float32(zero)

    def error(codes: np.ndarray, scales: np.ndarray) -> float:
        spread = [np.repeat(a, 16, axis=1) for a in (scales, zeros)]
        off = weight - (codes - spread[1]) * spread[0]
        return float(np.einsum("ok,kl,ol->", off, gram, off))

    better = descend(weight, codes, scales, zeros, gram, limits)
    assert error(*better) < 0.7 * error(codes, scales)
    assert better[0].min() >= limits[0]
    assert better[0].max() <= limits[1]
    assert np.array_equal(better[0], np.rint(better[0]))


def test_a_block_of_zeros_keeps_its_scale() -> None:
    weight = np.zeros((2, 16), np.float32)
    found = descend(
        weight,
        weight,
        np.ones((2, 1), np.float32),
        np.zeros((2, 1), np.float32),
        np.eye(16, dtype=np.float32),
        (-8, 7),
    )
    assert np.array_equal(found[1], np.ones((2, 1)))
