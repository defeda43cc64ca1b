from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.algorithms.compensate import feedback, round_compensated

RNG = np.random.default_rng(3)
LIMITS = (-127, 127)


def correlated(groups: int, width: int, rows: int = 4000) -> np.ndarray:
    mixing = RNG.standard_normal((groups, width, width)) / np.sqrt(width)
    return (RNG.standard_normal((groups, rows, width)) @ mixing).astype(np.float32)


def damage(weights: np.ndarray, rounded: np.ndarray, gram: np.ndarray) -> float:
    off = weights - rounded
    return float(np.einsum("goi,gij,goj->", off, gram, off))


@pytest.mark.parametrize(("groups", "outputs", "width"), [(1, 16, 150), (12, 1, 9)])
def test_less_damage_than_to_nearest(groups: int, outputs: int, width: int) -> None:
    rows = correlated(groups, width)
    gram = rows.transpose(0, 2, 1) @ rows / rows.shape[1]
    weights = RNG.standard_normal((groups, outputs, width)).astype(np.float32)
    scale = np.float32(0.2)
    compensated = round_compensated(weights, gram, scale, LIMITS) * scale
    nearest = np.rint(weights / scale) * scale
    assert damage(weights, compensated, gram) < 0.75 * damage(weights, nearest, gram)


def test_equal_to_the_recursion_written_out() -> None:
    rows = correlated(1, 90)
    gram = rows.transpose(0, 2, 1) @ rows / rows.shape[1]
    gram[0] = gram[0][np.argsort(-np.diagonal(gram[0]))][:, np.argsort(-np.diagonal(gram[0]))]
    weights = RNG.standard_normal((1, 4, 90)).astype(np.float32)
    factors = feedback(gram)[0]
    errors = np.zeros((4, 90))
    expected = np.zeros((4, 90))
    for j in range(90):
        target = weights[0, :, j] + errors[:, :j] @ factors[:j, j]
        expected[:, j] = np.clip(np.rint(target / 0.1), *LIMITS)
        errors[:, j] = weights[0, :, j] - expected[:, j] * 0.1
    got = round_compensated(weights, gram, np.float32(0.1), LIMITS)[0]
    assert np.mean(got == expected) > 0.99  # float32 against float64: a tie may fall elsewhere


def test_feedback_is_the_factor_of_the_damped_matrix() -> None:
    rows = correlated(1, 20)
    gram = rows.transpose(0, 2, 1) @ rows / rows.shape[1]
    unit = feedback(gram)[0] + np.eye(20)
    damped = gram[0] + 0.01 * np.diagonal(gram[0]).mean() * np.eye(20)
    inner = np.linalg.inv(unit) @ damped @ np.linalg.inv(unit).T
    np.testing.assert_allclose(inner, np.diag(np.diagonal(inner)), atol=1e-4)


def test_uncorrelated_inputs_leave_rounding_to_nearest() -> None:
    weights = RNG.standard_normal((1, 5, 40)).astype(np.float32)
    gram = np.eye(40, dtype=np.float32)[None]
    got = round_compensated(weights, gram, np.float32(0.05), LIMITS)
    np.testing.assert_array_equal(got, np.rint(weights / np.float32(0.05)))


def test_limits_and_zero_points_hold() -> None:
    rows = correlated(1, 64)
    gram = rows.transpose(0, 2, 1) @ rows / rows.shape[1]
    weights = RNG.standard_normal((1, 8, 64)).astype(np.float32) + 0.5
    scale = np.full((1, 8, 64), 0.25, np.float32)
    got = round_compensated(weights, gram, scale, (0, 15), np.full((1, 8, 64), 6, np.float32))
    assert got.min() >= 0
    assert got.max() <= 15
    assert np.abs((got - 6) * 0.25 - weights).mean() < 0.3


@pytest.mark.parametrize("rank", [0, 1, 5])
def test_inputs_without_full_rank(rank: int) -> None:
    rows = RNG.standard_normal((1, 500, rank)) @ RNG.standard_normal((rank, 30))
    gram = (rows.transpose(0, 2, 1) @ rows).astype(np.float32)
    weights = RNG.standard_normal((1, 4, 30)).astype(np.float32)
    got = round_compensated(weights, gram, np.float32(0.1), LIMITS)
    assert np.isfinite(got).all()
    assert np.abs(got).max() <= 127
