from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.algorithms.native_cancel import BLOCK, native_cancel

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 40])
@pytest.mark.parametrize(("groups", "width", "start"), [(1, 5, 0), (3, 9, 0), (2, 80, BLOCK)])
@pytest.mark.parametrize("of_each_number", [False, True])
def test_numbers_are_those_of_the_plain_loop(
    rows: int, groups: int, width: int, start: int, of_each_number: bool
) -> None:
    columns = width if of_each_number else 1
    weights, factors = normal(groups, width, rows), normal(groups, width, width) * np.float32(0.3)
    scales = np.abs(normal(groups, columns, rows)) + np.float32(0.1)
    limits = -3.0 - np.abs(normal(groups, columns, rows)), np.full_like(scales, 4.0)
    count = min(BLOCK, width - start)
    targets = np.ascontiguousarray(weights[:, start : start + count]) + np.float32(0.05)
    errors, integers = np.zeros_like(weights), np.full_like(weights, 99.0)
    native_cancel(weights, targets, factors, scales, 1 / scales, limits, errors, integers, start)
    own = np.zeros((groups, count, rows))
    for j in range(count):
        column = start + j if of_each_number else 0
        before = factors[:, start + j, start : start + j, None].astype(np.float64) * own[:, :j]
        wanted = (targets[:, j] + before.sum(axis=1)) / scales[:, column]
        rounded = np.clip(np.rint(wanted), limits[0][:, column], limits[1][:, column])
        # A number that lies between two integers may go either way by its last bit.
        sure = np.abs(wanted - np.floor(wanted) - 0.5) > 1e-3
        found = integers[:, start + j]
        np.testing.assert_allclose(found[sure], rounded[sure], atol=1e-5)
        exact = weights[:, start + j] - found * scales[:, column]
        np.testing.assert_allclose(errors[:, start + j], exact, atol=1e-5)
        own[:, j] = errors[:, start + j]
    untouched = np.delete(integers, np.arange(start, start + count), axis=1)
    assert np.all(untouched == 99.0)
