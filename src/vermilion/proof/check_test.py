from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from vermilion.proof.check import agreement_of, check_output, nothing_shown, spread_of

RIGHT = np.random.default_rng(0).standard_normal((6, 40)).astype(np.float32)
NAN, INF = np.nan, np.inf


def one_off(array: np.ndarray) -> np.ndarray:
    wrong = array.copy()
    wrong[3, 7] += 1e-3
    return wrong


WRONG: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "twice": lambda y: 2 * y,
    "a thousandth more": lambda y: y * np.float32(1.001),
    "5 % noise": lambda y: y * (1 + 0.05 * np.random.default_rng(1).standard_normal(y.shape)),
    "one value of 240 off by a thousandth": one_off,
    "a row of the neighbour": lambda y: np.concatenate([y[:1], y[:1], y[2:]]),
    "shifted by one": lambda y: np.roll(y, 1, axis=1),
    "another sign": lambda y: -y,
    "nothing": np.zeros_like,
    "NaN": lambda y: np.where(y > 2, NAN, y),
    "half precision": lambda y: y.astype(np.float16),
}


@pytest.mark.parametrize("name", WRONG)
def test_float32_passes_roundings_and_nothing_else(name: str) -> None:
    assert check_output("y", RIGHT, RIGHT, "fp32").passed
    assert check_output("y", RIGHT, RIGHT * np.float32(1 + 2e-7), "fp32").passed
    wrong = WRONG[name](RIGHT).astype(np.float32)
    assert not check_output("y", RIGHT, wrong, "fp32").passed


def test_a_small_row_beside_large_ones_is_judged_by_its_own_size() -> None:
    right = RIGHT.copy()
    right[2] *= 1e-3
    wrong = right.copy()
    wrong[2] = right[2, ::-1]
    found = check_output("y", right, wrong, "fp32")
    assert found.sqnr_db > 60
    assert not found.passed
    assert found.excess > 100


def test_bfloat16_passes_its_own_rounding_and_no_larger_one() -> None:
    rounded = RIGHT.astype(ml_dtypes.bfloat16)
    assert check_output("y", RIGHT, rounded.astype(np.float32), "bf16").passed
    assert check_output("y", rounded, rounded, "bf16").passed
    assert not check_output("y", RIGHT, RIGHT * np.float32(1.03), "bf16").passed
    assert not check_output("y", RIGHT, rounded.astype(np.float32), "fp32").passed


@pytest.mark.parametrize(
    ("other", "unlike"),
    [([1.0, NAN, INF, -INF], 0), ([1.0, 2.0, INF, -INF], 1), ([NAN, NAN, -INF, INF], 3)],
)
def test_what_is_no_number_stands_in_the_same_places(other: list[float], unlike: int) -> None:
    right = np.array([1.0, NAN, INF, -INF], np.float32)
    found = check_output("y", right, np.array(other, np.float32), "fp32")
    assert (found.unlike, found.passed) == (unlike, unlike == 0)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (np.array([1, 2, 300], np.int64), np.array([1, 2, 301], np.int64)),
        (np.array([True, False]), np.array([True, True])),
        (np.array(["a", "b"]), np.array(["a", "c"])),
        (np.array([0, 255], np.uint8), np.array([1, 255], np.uint8)),
    ],
)
def test_integers_booleans_and_text_are_exact(right: np.ndarray, wrong: np.ndarray) -> None:
    assert check_output("y", right, right, "exact").passed
    found = check_output("y", right, wrong, "fp32")
    assert found.format == "exact"
    assert (found.wrong, found.passed) == (1, False)


def test_other_shapes_and_types_are_named() -> None:
    found = check_output("y", RIGHT, RIGHT[:5], "fp32")
    assert str(found) == "float32[5, 40] instead of float32[6, 40]"
    assert not found.passed
    assert not check_output("y", RIGHT, RIGHT.astype(np.int32), "fp32").passed


def test_sequences_are_compared_value_by_value() -> None:
    assert check_output("y", [RIGHT, RIGHT[0]], [RIGHT, RIGHT[0]], "fp32").passed
    assert not check_output("y", [RIGHT, RIGHT[0]], [RIGHT, RIGHT[1]], "fp32").passed
    assert check_output("y", [], [], "fp32").passed


def test_what_noise_does_to_a_row_is_allowed_there_and_nowhere_else() -> None:
    noisy = []
    for seed in range(3):
        run = RIGHT.copy()
        run[1] += 1e-3 * np.random.default_rng(seed).standard_normal(40).astype(np.float32)
        noisy.append(run)
    spread = spread_of(RIGHT, noisy)
    near, elsewhere, far = RIGHT.copy(), RIGHT.copy(), RIGHT.copy()
    near[1] += 1e-3
    elsewhere[4] += 1e-2
    far[1] += 1.0
    assert not check_output("y", RIGHT, near, "fp32").passed
    assert check_output("y", RIGHT, near, "fp32", spread).passed
    assert not check_output("y", RIGHT, elsewhere, "fp32", spread).passed
    assert not check_output("y", RIGHT, far, "fp32", spread).passed


def test_a_code_that_noise_turns_over_may_be_either() -> None:
    right = np.arange(8, dtype=np.uint8)
    other = right.copy()
    other[3] += 1
    spread = spread_of(right, [other, right])
    assert check_output("y", right, other, "exact", spread).passed
    other[5] += 1
    assert not check_output("y", right, other, "exact", spread).passed
    assert spread_of(right, [right[:3]]) is None


def test_the_figures_of_a_report_are_numbers_whoever_has_none() -> None:
    """JSON has no infinity: figures are over the places where both have numbers."""
    broken = RIGHT.copy()
    broken[0, :3] = NAN, INF, -INF
    for expected, found in ((RIGHT, broken), (broken, RIGHT), (broken, broken.copy())):
        check = check_output("y", expected, found, "fp32")
        row = agreement_of(check, expected, found)
        assert (row.max_abs_error, row.cosine) == (0.0, pytest.approx(1.0))
        assert row.has_nan == ((expected is RIGHT) != (found is RIGHT))


def test_numbers_below_the_smallest_normal_one_may_be_zero_in_bfloat16() -> None:
    tiny = np.full((4, 16), 1e-39, np.float32)
    assert check_output("y", tiny, np.zeros_like(tiny), "bf16").passed
    assert not check_output("y", tiny, np.zeros_like(tiny), "fp32").passed
    assert not check_output("y", tiny + np.float32(1e-35), tiny, "bf16").passed


def test_an_output_of_such_numbers_is_not_called_proven() -> None:
    tiny = np.full((4, 16), 1e-39, np.float32)
    check = check_output("y", tiny, np.zeros_like(tiny), "bf16")
    assert "below 8e-37" in nothing_shown(check, tiny, amplified=False)
    assert not nothing_shown(check_output("y", tiny, tiny, "bf16"), tiny, amplified=False)
