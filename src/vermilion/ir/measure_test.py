from __future__ import annotations

import math

import numpy as np
import pytest

from vermilion.ir.measure import EXACT_DB, agreement, sqnr_from_sums


def arrays(*values: list[float]) -> list[np.ndarray]:
    return [np.array(value, np.float32) for value in values]


def test_equal_arrays_agree_exactly() -> None:
    a, b = arrays([1, -2, 3], [1, -2, 3])
    found = agreement("y", a, b)
    assert found.cosine == pytest.approx(1.0, abs=1e-15)
    assert (found.sqnr_db, found.max_abs_error) == (EXACT_DB, 0.0)
    assert found.as_json() == {
        "name": "y",
        "cosine": found.cosine,
        "sqnr_db": EXACT_DB,
        "max_abs_error": 0.0,
    }


def test_a_known_error_gives_the_known_figures() -> None:
    a, b = arrays([3, 4], [3, 4.5])
    found = agreement("y", a, b)
    # 10·log10(25 ÷ 0.25) = 20 dB; (9 + 18) ÷ (5 · √29.25).
    assert found.sqnr_db == pytest.approx(20.0)
    assert found.cosine == pytest.approx(27 / (5 * math.sqrt(29.25)))
    assert found.max_abs_error == 0.5


def test_a_scale_does_not_show_in_the_cosine_but_in_the_sqnr() -> None:
    a, b = arrays([1, 2], [2, 4])
    found = agreement("y", a, b)
    assert found.cosine == pytest.approx(1.0)
    assert found.sqnr_db == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("reference", "other", "cosine", "sqnr_db"),
    [
        ([0, 0], [0, 0], 1.0, EXACT_DB),
        ([0, 0], [1, 0], 0.0, -EXACT_DB),
        ([1, 0], [0, 0], 0.0, 0.0),
        ([], [], 1.0, EXACT_DB),
    ],
)
def test_zeros_and_nothing(
    reference: list[float], other: list[float], cosine: float, sqnr_db: float
) -> None:
    found = agreement("y", *arrays(reference, other))
    assert (found.cosine, found.sqnr_db) == (cosine, sqnr_db)


def test_equal_infinities_and_nans_are_agreement() -> None:
    a, b = arrays([-math.inf, 1, math.nan], [-math.inf, 1, math.nan])
    found = agreement("y", a, b)
    assert (found.cosine, found.sqnr_db, found.has_nan) == (1.0, EXACT_DB, False)


@pytest.mark.parametrize("other", [[math.nan, 1], [math.inf, 1], [-math.inf, 1]])
def test_one_value_that_is_no_number_is_no_agreement(other: list[float]) -> None:
    found = agreement("y", *arrays([2, 1], other))
    assert (found.cosine, found.sqnr_db, found.max_abs_error) == (0.0, -EXACT_DB, math.inf)
    assert found.has_nan == math.isnan(other[0])
    assert ("has_nan" in found.as_json()) == found.has_nan


def test_strings_are_equal_or_not() -> None:
    words = np.array(["a", "b"], object)
    assert agreement("y", words, words.copy()).sqnr_db == EXACT_DB
    assert agreement("y", words, np.array(["a", "c"], object)).sqnr_db == -EXACT_DB


def test_integers_do_not_overflow() -> None:
    low, high = np.array([-128], np.int8), np.array([127], np.int8)
    assert agreement("y", low, high).max_abs_error == 255.0


def test_sqnr_is_cut_off_on_both_sides() -> None:
    assert sqnr_from_sums(1e300, 1e-300) == EXACT_DB
    assert sqnr_from_sums(1e-300, 1e300) == -EXACT_DB
    assert sqnr_from_sums(100.0, 1.0) == pytest.approx(20.0)


def test_every_block_of_a_large_array_counts() -> None:
    a = np.full(100_001, 2, np.float32)
    b = a.copy()
    b[[0, 50_000, -1]] += 1
    found = agreement("y", a, b)
    assert found.max_abs_error == 1.0
    assert found.sqnr_db == pytest.approx(10 * math.log10(4 * 100_001 / 3))
    b[70_000] = math.nan
    assert agreement("y", a, b).sqnr_db == -EXACT_DB
    assert agreement("y", a, b, numbers_only=True).sqnr_db == pytest.approx(found.sqnr_db)
