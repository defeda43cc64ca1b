"""Values on their way between processes: all kinds, in every order, and empty ones."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from vermilion.process.arrays import read_values, write_values

ARRAYS = {
    "bytes": np.arange(5, dtype=np.uint8),
    "empty": np.zeros((0, 3, 4), np.float32),
    "scalar": np.array(2.5),
    "none": np.zeros((2, 0), np.int64),
}


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("names", list(permutations(ARRAYS)), ids="-".join)
def test_arrays_come_as_they_went(tmp_path: Path, names: tuple[str, ...], mapped: bool) -> None:
    rows = write_values({name: ARRAYS[name] for name in names}, tmp_path / "values")
    found = read_values(rows, tmp_path / "values", mapped=mapped)
    assert list(found) == list(names)
    for name in names:
        assert found[name].dtype == ARRAYS[name].dtype
        assert found[name].shape == ARRAYS[name].shape
        assert np.array_equal(found[name], ARRAYS[name])


def test_lists_texts_and_nothing_cross(tmp_path: Path) -> None:
    values = {
        "list": [ARRAYS["bytes"], ARRAYS["empty"], None],
        "texts": np.array([["a", "b"]], "O"),
    }
    rows = write_values(values, tmp_path / "values")
    found = read_values(rows, tmp_path / "values")
    assert [None if item is None else item.shape for item in found["list"]] == [
        (5,),
        (0, 3, 4),
        None,
    ]
    assert found["texts"].tolist() == [["a", "b"]]


def test_a_file_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    rows = write_values(ARRAYS, tmp_path / "values")
    (tmp_path / "values").write_bytes(b"")
    with pytest.raises(ValueError, match="outside its file"):
        read_values(rows, tmp_path / "values")
