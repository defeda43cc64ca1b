from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vermilion.errors import OptionError
from vermilion.ir.arrays import npz_names, read_npy, read_npz


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.float32).reshape(2, 3, 4),
        np.array(7, np.int8),
        np.zeros((0, 3), np.float64),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.array(["ab", "c"]),
        np.array([True, False]),
        np.arange(3, dtype=">f4"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_arrays_come_back_as_they_were(array: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", a=array, b=array)
    np.savez_compressed(tmp_path / "c.npz", a=array)
    for found in (
        read_npy(tmp_path / "a.npy"),
        read_npz(tmp_path / "a.npz")["b"],
        read_npz(tmp_path / "c.npz", ["a"])["a"],
    ):
        np.testing.assert_array_equal(found, array)
        assert found.dtype == array.dtype


def test_a_mapped_array_stays_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10))
    assert isinstance(read_npy(tmp_path / "a.npy", mapped=True), np.memmap)


def test_only_wanted_arrays_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", a=np.ones(1), b=np.array([{}], dtype=object))
    assert npz_names(tmp_path / "a.npz") == ["a", "b"]
    assert list(read_npz(tmp_path / "a.npz", ["a"])) == ["a"]
    with pytest.raises(OptionError, match="pickled Python objects"):
        read_npz(tmp_path / "a.npz")


def test_a_file_that_is_longer_or_shorter_than_it_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(10))
    whole = path.read_bytes()
    for data in (whole[:-1], whole + b"x"):
        path.write_bytes(data)
        with pytest.raises(OptionError, match="it says that it has") as caught:
            read_npy(path)
        assert caught.value.hint


def test_records_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3, [("x", "f4")]))
    with pytest.raises(OptionError, match="records"):
        read_npy(tmp_path / "a.npy")
