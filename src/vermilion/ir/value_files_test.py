"""Nothing that a model gives is lost in a file, under whatever name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from vermilion.errors import OptionError
from vermilion.ir.value_files import check_form, read_values, write_values

NAMES = (
    "y", "file", "allow_pickle", "args", "kwds", "self", "arr_0", "../up", "/root", "a/b", "..",
    ".", "", " ", "index.json", "y[0]", "ключ", "a\\b", "con", "x" * 300, "a:b", "*", "000",
)  # fmt: skip
FORMS = ("o.npz", "folder")


def same(found: Any, given: Any) -> bool:
    if isinstance(given, dict):
        return isinstance(found, dict) and list(found) == list(given) and all(
            same(found[key], value) for key, value in given.items()
        )  # fmt: skip
    if isinstance(given, list):
        return isinstance(found, list) and len(found) == len(given) and all(map(same, found, given))
    if not isinstance(given, np.ndarray):
        return bool(found == given)
    if given.dtype.kind == "O":
        return found.shape == given.shape and found.tolist() == given.tolist()
    if found.dtype != given.dtype or found.shape != given.shape:
        return False
    return bool(found.tobytes() == given.tobytes())


def kept(path: Path, values: dict[str, Any]) -> bool:
    write_values(path, values)
    return same(read_values(path), values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_read_under_it(name: str, form: str, tmp_path: Path) -> None:
    values = {name: np.arange(4, dtype=np.float32), "other": np.ones((2, 1), np.int64)}
    assert kept(tmp_path / form, values)
    assert {path.name for path in tmp_path.iterdir()} == {form}
    if form == "o.npz":
        with np.load(tmp_path / form) as arrays:
            assert arrays[name].tolist() == [0, 1, 2, 3]


def test_names_that_a_zip_cannot_tell_apart_go_into_a_folder(tmp_path: Path) -> None:
    values = {"y": np.zeros(1), "y.npy": np.ones(1)}
    with pytest.raises(OptionError, match=r"cannot tell an array called `y\.npy`"):
        write_values(tmp_path / "o.npz", values)
    assert not list(tmp_path.iterdir())
    assert kept(tmp_path / "folder", values)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "uint16", "int64", "float16", "float64", "complex64", "bfloat16"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "int4", "uint4"),
    ],
)
def test_every_number_format_is_read_as_it_was(dtype: str, form: str, tmp_path: Path) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    array = np.array([[0, 1, 3], [5, 7, 1]]).astype(kind)
    for shaped in (array, array[0, 1:2].reshape(()), array[:0], array.T):
        assert kept(tmp_path / form, {"y": shaped})
    write_values(tmp_path / "plain.npz", {"y": array})
    with np.load(tmp_path / "plain.npz") as arrays:  # with numpy alone: numbers of equal value
        assert arrays["y"].dtype.kind in "biufc"
        assert arrays["y"].astype(complex).tolist() == array.astype(complex).tolist()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "texts", [["hüpfer", "cat", ""], [], ["a\0b", "ends in zero\0"], ["\ud800"], [["x"], ["日本"]]]
)
def test_texts_are_kept_without_pickle(texts: list[Any], form: str, tmp_path: Path) -> None:
    given = np.array(texts, object)
    write_values(tmp_path / form, {"label": given})
    found = read_values(tmp_path / form)["label"]
    assert found.shape == given.shape
    assert found.tolist() == given.tolist()


def test_one_long_text_among_many_takes_no_memory_for_all(tmp_path: Path) -> None:
    given = np.array(["x" * 1_000_000, *["short"] * 100_000], object)
    assert kept(tmp_path / "o.npz", {"label": given})
    assert (tmp_path / "o.npz").stat().st_size < 5_000_000


@pytest.mark.parametrize("form", FORMS)
def test_sequences_maps_and_nothing_are_kept(form: str, tmp_path: Path) -> None:
    one, two = np.ones(2, np.float32), np.zeros((1, 3), ml_dtypes.bfloat16)
    values = {
        "sequence": [one, two],
        "sequence[0]": one,  # as an item of the sequence might be called
        "empty": [],
        "optional": None,
        "optional sequence": [None, one],
        "map": {3: 0.25, 1: float("inf")},
        "classes": [{"cat": 0.5, "dog": 0.25}, {"cat": 0.125}],
    }
    assert kept(tmp_path / form, values)


def test_one_array_goes_into_a_file_of_one(tmp_path: Path) -> None:
    write_values(tmp_path / "y.npy", {"any/name": np.arange(3)})
    assert np.load(tmp_path / "y.npy").tolist() == [0, 1, 2]
    with pytest.raises(OptionError, match="holds one array; the outputs are `a`, `b`"):
        write_values(tmp_path / "y.npy", {"a": np.ones(1), "b": np.ones(1)})
    assert np.load(tmp_path / "y.npy").tolist() == [0, 1, 2]


def test_what_is_there_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    write_values(folder, {"a": np.ones(1), "b": np.ones(1)})
    write_values(folder, {"c": np.ones(1)})
    assert {path.name for path in folder.iterdir()} == {"index.json", "000.npy"}
    (folder / "notes.txt").write_text("mine")
    for refuse in (check_form, lambda place: write_values(place, {"c": np.ones(1)})):
        with pytest.raises(OptionError, match="which is not replaced"):
            refuse(folder)
    assert (folder / "notes.txt").read_text() == "mine"

    class Unwritable:
        def __array__(self, *_: object, **__: object) -> Any:
            raise MemoryError

    for form in ("o.npz", "new"):
        with pytest.raises(MemoryError):
            write_values(tmp_path / form, {"a": np.ones(1), "b": Unwritable()})
    assert {path.name for path in tmp_path.iterdir()} == {"folder"}


@pytest.mark.parametrize("ending", [".txt", ".npzz", ".safetensors"])
def test_an_ending_that_is_none_of_ours_is_refused_before_anything_runs(ending: str) -> None:
    with pytest.raises(OptionError, match=r"neither NAME\.npz, NAME\.npy nor a folder"):
        check_form(Path(f"o{ending}"))


@pytest.mark.parametrize(
    "text",
    [
        "", "{}", "[1]", '{"format": 9, "values": {}, "files": {}}',
        '{"format": 1, "values": {"y": {"array": "x"}}, "files": {}}',
        '{"format": 1, "values": {"y": {"array": "x"}}, "files": {"x": "../../etc/passwd"}}',
        '{"format": 1, "values": {"y": {"array": "x", "dtype": "object"}},'
        ' "files": {"x": "000.npy"}}',
    ],
)  # fmt: skip
def test_a_damaged_folder_is_refused_in_words(text: str, tmp_path: Path) -> None:
    write_values(tmp_path / "f", {"y": np.ones(1)})
    (tmp_path / "f" / "index.json").write_text(text)
    with pytest.raises(OptionError, match=r"cannot be read|can be read"):
        read_values(tmp_path / "f")
