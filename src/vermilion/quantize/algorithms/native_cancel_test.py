from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.algorithms.native_cancel import Levels, native_cancel

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 15, 64, 70, 130])
@pytest.mark.parametrize(("groups", "width"), [(1, 5), (3, 9), (2, 80)])
@pytest.mark.parametrize("of_each_number", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_numbers_are_those_of_the_plain_loop(
    rows: int, groups: int, width: int, of_each_number: bool, turned: bool
) -> None:
    columns = width if of_each_number else 1
    weights = normal(groups, width, rows).transpose(0, 2, 1) if turned else normal(
        groups, rows, width
    )  # fmt: skip
    order = np.stack([RNG.permutation(width) for _ in range(groups)])
    factors = normal(groups, width, width) * np.float32(0.2)
    own = np.arange(width)
    factors[:, own, own] = 1.0 + np.abs(factors[:, own, own])
    levels = Levels(
        np.abs(normal(groups, columns, rows)) + np.float32(0.1),
        -3.0 - np.abs(normal(groups, columns, rows)),
        np.full((groups, columns, rows), 4.0, np.float32),
        np.rint(normal(groups, columns, rows)),
    )
    means = normal(groups, width)
    out = np.full_like(weights, 99.0)
    shifts = native_cancel(weights, order, factors, levels, means, out)
    errors = np.zeros((groups, width, rows))
    for j in range(width):
        at = j if of_each_number else 0
        scale, low, high, zero = (
            array[:, at].astype(np.float64)
            for array in (levels.scales, levels.lowest, levels.highest, levels.zeros)
        )
        row = factors[:, width - 1 - j, ::-1].astype(np.float64)
        before = (row[:, :j, None] * errors[:, :j]).sum(axis=1) / row[:, j, None]
        here, found = (
            np.take_along_axis(array, order[:, None, j, None], axis=2)[:, :, 0]
            for array in (weights, out)
        )
        wanted = (here + before) / scale
        rounded = np.clip(np.rint(wanted), low, high)
        # A number that lies between two integers may go either way by its last bit.
        sure = np.abs(wanted - np.floor(wanted) - 0.5) > 1e-3
        np.testing.assert_allclose(found[sure], (rounded + zero)[sure], atol=1e-5)
        errors[:, j] = here - (found - zero) * scale
    ordered = np.take_along_axis(means, order, axis=1)
    np.testing.assert_allclose(shifts, (errors * ordered[:, :, None]).sum(axis=1), atol=1e-2)
