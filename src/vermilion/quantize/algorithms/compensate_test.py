from __future__ import annotations

import numpy as np
import pytest

from vermilion.quantize.algorithms.compensate import round_compensated, round_into

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


def feedback(gram: np.ndarray) -> np.ndarray:
    """Return R_ij ÷ R_jj for i < j, where R is upper triangular and R·Rᵀ is the damped matrix."""
    damped = gram + 0.01 * np.diagonal(gram).mean() * np.eye(len(gram))
    upper = np.linalg.cholesky(damped[::-1, ::-1])[::-1, ::-1]
    return np.triu(upper / np.diagonal(upper), 1)


def recursion(weights: np.ndarray, gram: np.ndarray, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Return integers and errors of one group as the definition says, slowly."""
    order = np.argsort(-np.diagonal(gram))
    factors = feedback(gram[order][:, order].astype(np.float64))
    errors, integers = np.zeros((2, *weights.shape))
    for j, place in enumerate(order):
        target = weights[:, place] + errors[:, :j] @ factors[:j, j]
        integers[:, place] = np.clip(np.rint(target / scale), *LIMITS)
        errors[:, j] = weights[:, place] - integers[:, place] * scale
    return integers, weights - integers * scale


@pytest.mark.parametrize("kind", [np.float32, np.int8])
@pytest.mark.parametrize("outputs", [1, 16, 63, 64, 100])
@pytest.mark.parametrize("width", [1, 9, 90])
def test_equal_to_the_recursion_written_out(outputs: int, width: int, kind: type) -> None:
    rows = correlated(2, width)
    gram = rows.transpose(0, 2, 1) @ rows / rows.shape[1]
    mean = RNG.standard_normal((2, width)).astype(np.float32)
    # Blocks of a long row: what belongs together lies apart.
    weights = RNG.standard_normal((outputs, 2, width)).astype(np.float32).transpose(1, 0, 2)
    got = np.full((outputs, 2, width), 99, kind).transpose(1, 0, 2)
    shifts = round_into(got, weights, gram, np.float32(0.1), LIMITS, mean=mean)
    for group in range(2):
        expected, errors = recursion(weights[group], gram[group], 0.1)
        # float32 against float64: a tie may fall elsewhere, and what comes behind it with it
        same = (got[group] == expected).all(axis=1)
        assert same.mean() > 0.8
        np.testing.assert_allclose(shifts[group][same], (errors @ mean[group])[same], atol=1e-3)


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
