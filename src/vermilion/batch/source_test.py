from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vermilion.batch.job import Range, Slot
from vermilion.batch.row_files import open_rows
from vermilion.batch.source import (
    Reader,
    count_inputs,
    find_source,
    input_name,
)
from vermilion.errors import OptionError
from vermilion.ir.pictures import PictureOptions

FLOATS = Slot("x", np.dtype(np.float32), (8, 2, None))
NUMBERS = Slot("n", np.dtype(np.int64), (8,))
PICTURES = Slot("x", np.dtype(np.float32), (None, 3, 4, 5))


def floats(rows: int, first: int = 0) -> NDArray[np.float32]:
    return (first * 6 + np.arange(rows * 6, dtype=np.float32)).reshape(rows, 2, 3)


def test_rows_of_several_files_are_numbered_through(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=floats(3), n=np.arange(3))
    np.savez_compressed(tmp_path / "b.npz", x=floats(4, 3), n=np.arange(3, 7))
    slots = (FLOATS, NUMBERS)
    source = find_source(tmp_path, slots, PictureOptions())
    assert (count_inputs(source, slots), input_name(source, 5)) == (7, "b.npz[2]")
    read = Reader(source, slots).read(Range(2, 6))
    np.testing.assert_array_equal(read.arrays["x"], floats(7)[2:6])
    np.testing.assert_array_equal(read.arrays["n"], [2, 3, 4, 5])


def test_a_stored_array_is_mapped_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.asfortranarray(floats(5)))
    rows = open_rows(tmp_path / "a.npz", (FLOATS,))
    assert isinstance(rows.arrays["x"].base, np.memmap)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(rows.read(1, 3)["x"], floats(5)[1:3])


def test_one_array_is_taken_for_one_input_whatever_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", other=floats(2))
    np.save(tmp_path / "b.npy", floats(2)[:, None])  # batches of one
    for name in ("a.npz", "b.npy"):
        np.testing.assert_array_equal(
            open_rows(tmp_path / name, (FLOATS,)).read(0, 2)["x"], floats(2)
        )


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": floats(2).astype(np.float64), "n": np.arange(2)}, "got float64 and expected"),
        ({"x": floats(2), "n": np.arange(3)}, "different numbers of inputs: `x` 2, `n` 3"),
        ({"x": floats(2)[:, :1], "n": np.arange(2)}, r"float32\[2,1,3\] and expected rows of"),
        ({"x": floats(2)}, "no array for input `n`"),
    ],
)
def test_arrays_that_do_not_fit(
    arrays: dict[str, NDArray[np.float32]], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=message):
        find_source(tmp_path / "a.npz", (FLOATS, NUMBERS), PictureOptions())


def test_a_member_that_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, x=floats(5))
    path.write_bytes(path.read_bytes().replace(b"(5, 2, 3)", b"(9, 2, 3)"))
    with pytest.raises(OptionError, match="cannot be read"):
        open_rows(path, (FLOATS,))


def test_a_picture_that_cannot_be_read_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    for name in ("a.png", "c.png"):
        Image.new("RGB", (5, 4), (255, 0, 51)).save(tmp_path / name)
    (tmp_path / "b.png").write_bytes(b"no picture")
    source = find_source(tmp_path, (PICTURES,), PictureOptions())
    assert count_inputs(source, (PICTURES,)) == 3
    read = Reader(source, (PICTURES,)).read(Range(0, 3))
    assert read.live == (0, 2)
    assert "is not an image" in read.failed[1]
    np.testing.assert_allclose(read.arrays["x"][:, :, 0, 0], [[1, 0, 0.2]] * 2)


def test_a_folder_without_inputs_or_of_two_kinds(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="holds no inputs"):
        find_source(tmp_path, (FLOATS,), PictureOptions())
    with pytest.raises(OptionError, match="does not exist"):
        find_source(tmp_path / "none", (FLOATS,), PictureOptions())
    np.save(tmp_path / "a.npy", floats(2))
    Image.new("RGB", (5, 4)).save(tmp_path / "a.png")
    with pytest.raises(OptionError, match="both images and arrays"):
        find_source(tmp_path, (FLOATS,), PictureOptions())


@pytest.mark.needs("pyarrow")
def test_rows_of_a_parquet_file(tmp_path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    values = floats(10)
    nested = arrow.array(values.tolist(), arrow.list_(arrow.list_(arrow.float32())))
    tensors = arrow.FixedShapeTensorArray.from_numpy_ndarray(values)
    flat = arrow.FixedSizeListArray.from_arrays(arrow.array(values.reshape(-1)), 6)
    for name, column in (("nested", nested), ("tensors", tensors), ("flat", flat)):
        table = arrow.table({"x": column, "n": np.arange(10), "label": ["a"] * 10})
        parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=4)
        rows = open_rows(tmp_path / f"{name}.parquet", (FLOATS, NUMBERS))
        assert rows.count == 10
        for start, stop in ((0, 2), (3, 9), (9, 10)):
            read = rows.read(start, stop)
            np.testing.assert_array_equal(read["x"], values[start:stop])
            np.testing.assert_array_equal(read["n"], range(start, stop))


@pytest.mark.needs("pyarrow")
def test_a_parquet_file_that_does_not_fit(tmp_path: Path) -> None:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(arrow.table({"y": [1]}), path)
    with pytest.raises(OptionError, match="no column for input `n`"):
        open_rows(path, (NUMBERS,))
    parquet.write_table(arrow.table({"n": [1, None]}), path)
    with pytest.raises(OptionError, match="without gaps"):
        open_rows(path, (NUMBERS,)).read(0, 2)
    path.write_bytes(b"nothing")
    with pytest.raises(OptionError, match="no Parquet file"):
        open_rows(path, (NUMBERS,))
