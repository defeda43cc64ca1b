from __future__ import annotations

import numpy as np
import pytest

from vermilion.backends.provider.unwritten import blank, is_certain, unwritten

TYPES = ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?")


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_there_before_a_run_is_known_again(dtype: str, turn: int) -> None:
    found = blank(np.dtype(dtype), (4, 3), turn)
    assert found.dtype == np.dtype(dtype)
    assert unwritten(found, turn) == "it is never written"
    found[0] = 1
    assert unwritten(found, turn) == "entry 1 of the batch of 4 is never written"
    found[:] = 0
    assert unwritten(found, turn) == ""
    if np.dtype(dtype).kind == "f":
        found[:] = np.nan
        assert unwritten(found, turn) == "", "NaN of arithmetic are results"
    assert unwritten(blank(np.dtype(dtype), (0, 3), turn), turn) == ""
    assert unwritten(blank(np.dtype(dtype), (), turn), turn) == "it is never written"


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "i8", "?"])
def test_one_value_that_is_left_is_seen(dtype: str) -> None:
    found = blank(np.dtype(dtype), (2, 8), 1)
    found.reshape(-1)[1:] = 0
    assert unwritten(found, 1) == "1 of its 16 values are never written"


@pytest.mark.parametrize("dtype", TYPES)
def test_what_looks_so_by_chance_does_not_a_second_time(dtype: str) -> None:
    by_chance = blank(np.dtype(dtype), (3,), 1)
    if not is_certain(np.dtype(dtype)):
        assert unwritten(by_chance, 2) == ""
