from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from vermilion.cli.options import bytes_for_people, load_inputs, parse_dims, parse_size
from vermilion.errors import OptionError


def test_dims_are_numbers_or_whole_shapes() -> None:
    assert parse_dims(["batch=1", "x=1x3x48x320"]) == {"batch": 1, "x": (1, 3, 48, 320)}
    assert parse_dims(None) == {}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("batch", "is not NAME=VALUE"),
        ("=1", "is not NAME=VALUE"),
        ("batch=", "is not a shape"),
        ("batch=0", "is not a shape"),
        ("batch=-1", "is not a shape"),
        ("x=1x", "is not a shape"),
        ("x=1,3", "is not a shape"),
        (f"batch={2**63}", "is not a shape"),
        (f"batch={'1' * 5000}", "is not a shape"),  # more digits than Python reads
        ("batch=\u00b2", "is not a shape"),  # a digit that `int` refuses
        ("batch=\u0661", "is not a shape"),  # an Arabic one: a digit to Python, not to a shape
    ],
)
def test_a_dim_that_is_none_says_how_to_write_it(word: str, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        parse_dims([word])
    assert caught.value.hint


def test_a_dim_given_twice_is_refused() -> None:
    with pytest.raises(OptionError, match="`batch` twice"):
        parse_dims(["batch=1", "batch=2"])


def test_inputs_come_from_npy_by_name_and_from_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    np.savez(tmp_path / "rest.npz", b=np.ones((2, 2)), c=np.zeros(1, np.int64))
    arrays = load_inputs([f"a={tmp_path / 'a.npy'}", str(tmp_path / "rest.npz")])
    assert {name: array.shape for name, array in arrays.items()} == {
        "a": (3,),
        "b": (2, 2),
        "c": (1,),
    }


def test_bad_input_files_are_named_and_nothing_is_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "zip.npz").write_bytes(b"PK\x03\x04 no archive")
    np.savez(tmp_path / "renamed.npz", a=np.ones(1))
    (tmp_path / "renamed.npz").rename(tmp_path / "renamed.npy")
    cases = [
        ("x=" + str(tmp_path / "objects.npy"), "pickled"),
        ("x=" + str(tmp_path / "text.npy"), "it is no numpy file"),
        ("x=" + str(tmp_path / "empty.npy"), "cannot be read"),
        ("x=" + str(tmp_path / "none.npy"), "no such file"),
        ("x=" + str(tmp_path / "renamed.npy"), r"\.npz archive"),
        (str(tmp_path / "zip.npz"), "cannot be read"),
        (str(tmp_path / "none.npz"), "no such file"),
        (str(tmp_path / "text.npy"), "say which input it is"),
        ("x=1x3", "neither"),
    ]
    for word, message in cases:
        with pytest.raises(OptionError, match=message):
            load_inputs([word])


def test_an_input_given_twice_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    word = f"a={tmp_path / 'a.npy'}"
    with pytest.raises(OptionError, match="`a` is given twice"):
        load_inputs([word, word])


def test_sizes_are_read_and_written_in_decimal_units() -> None:
    sizes = {"2GB": 2 * 10**9, "500 MB": 5 * 10**8, "1.5gb": 15 * 10**8, "4096": 4096, "0": 0}
    assert {text: parse_size(text) for text in sizes} == sizes
    assert [bytes_for_people(size) for size in (12, 12_340_000, 10**12)] == [
        "12 B",
        "12.3 MB",
        "1.0 TB",
    ]


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2XB", "2K", "1e3"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match="is not a size"):
        parse_size(text)
