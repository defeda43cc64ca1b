from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

from vermilion.runtime.judge import judge

NAN, INF = math.nan, math.inf


def test_numbers_are_held_to_the_cosine_alone() -> None:
    right = np.array([1.0, 2.0, 3.0], np.float32)
    assert not judge("y", right, right * np.float32(1.001)).is_far
    assert judge("y", right, right[::-1].copy()).is_far
    assert not judge("y", right * np.float32(1e-8), -right * np.float32(1e-8)).is_far


@pytest.mark.parametrize(
    ("other", "unlike"),
    [
        ([1.0, NAN, INF, -INF], 0),
        ([NAN, NAN, INF, -INF], 1),
        ([1.0, 2.0, INF, -INF], 1),
        ([1.0, NAN, -INF, INF], 2),
        ([1.0, INF, NAN, 4.0], 3),
    ],
)
def test_what_is_no_number_has_its_own_count(other: list[float], unlike: int) -> None:
    found = judge("y", np.array([1.0, NAN, INF, -INF], np.float32), np.array(other, np.float32))
    assert (found.unlike, found.places) == (unlike, 4)
    assert found.is_far == (unlike > 0)
    assert math.isfinite(found.agreement.max_abs_error), "the figures are those of the numbers"
    assert found.as_json()["number_places"] == found.numbers
    assert found.agreement.has_nan == (unlike > 0)


def test_a_reference_that_is_far_from_itself_excuses_as_much_and_no_more() -> None:
    right = np.linspace(-1, 1, 100)
    spread, few, many = right.copy(), right.copy(), right.copy()
    spread[:3], few[:6], many[:20] = NAN, NAN, NAN
    known = judge("y", right, spread)
    assert judge("y", right, few).is_wrong(None, 4.0)
    assert not judge("y", right, few).is_wrong(known, 4.0)
    assert judge("y", right, many).is_wrong(known, 4.0)
    few[6:] *= -1
    assert judge("y", right, few).is_wrong(known, 4.0), "the rest is no rounding"


def test_sizes_that_differ_are_wrong_and_not_compared() -> None:
    found = judge("y", np.zeros(3, np.int64), np.zeros(4, np.int64))
    assert found.is_far
    assert found.is_wrong(None, 1.0)


def test_other_types_are_compared_as_they_are() -> None:
    assert not judge("y", np.array(["a", "b"]), np.array(["a", "b"])).is_far
    assert judge("y", np.array(["a", "b"]), np.array(["a", "c"])).is_far
    assert judge("y", np.array([True, False]), np.array([False, True])).is_far
    half = np.array([1, NAN], ml_dtypes.bfloat16)
    assert judge("y", half, half).unlike == 0
    assert not judge("y", [np.ones(2), np.zeros(3)], [np.ones(2), np.zeros(3)]).is_far
    assert not judge("y", [], []).is_far
    assert "number_places" not in judge("y", np.zeros(0), np.zeros(0)).as_json()
