"""Drawing and folding in machine code against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.algorithms.native_moments import native_draw, native_fold


@pytest.mark.parametrize(
    ("groups", "rows", "width"),
    [(2, 7, 5), (1, 1, 1), (3, 50, 147), (2, 128, 48), (1, 9, 49), (1, 1300, 20)],
)
def test_folding(groups: int, rows: int, width: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((groups, rows + 3, width)).astype(np.float32)
    gram = np.ones((groups, width, width), np.float32)
    totals = np.full((groups, width), np.nan, np.float32)
    for _ in range(2):
        native_fold(x, rows, gram, totals)
    seen = x[:, :rows].astype(np.float64)
    upper = np.triu(np.ones((width, width), bool))
    expected = 1 + 2 * seen.transpose(0, 2, 1) @ seen
    np.testing.assert_allclose(gram[:, upper], expected[:, upper], rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(totals, seen.sum(axis=1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize(("channels", "blocks"), [(40, 2), (3, 1), (32, 2), (6, 6)])
def test_drawing(channels_last: bool, channels: int, blocks: int) -> None:
    rng = np.random.default_rng(1)
    pixels = rng.standard_normal((50, channels)).astype(np.float32)
    source = pixels if channels_last else np.ascontiguousarray(pixels.T)
    chosen = rng.integers(-1, 50, (8, 9))
    pixel_step, step = (channels, 1) if channels_last else (1, 50)
    places = np.where(chosen < 0, -1, chosen * pixel_step)
    run = channels // blocks
    target = np.full((blocks, 11, 9 * run), np.nan, np.float32)
    native_draw(source, step, places, target, 2)
    expected = np.where(chosen[..., None] < 0, 0, pixels[chosen])  # (rows, taps, channels)
    expected = expected.reshape(8, 9, blocks, run).transpose(2, 0, 1, 3).reshape(blocks, 8, -1)
    np.testing.assert_array_equal(target[:, 2:10], expected)
    assert np.isnan(target[:, [0, 1, 10]]).all()
