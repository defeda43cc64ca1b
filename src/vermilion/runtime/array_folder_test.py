"""Arrays that are kept: whole, mapped, and never taken where they are not what was written."""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from vermilion.runtime import array_folder
from vermilion.runtime.array_folder import (
    DATA_FILE,
    TABLE_FILE,
    NewArray,
    in_memory,
    new_array,
    open_arrays,
    problem_of,
    write_arrays,
)

RANDOM = np.random.default_rng(0)
ARRAYS: dict[str, NDArray[np.generic]] = {
    "bytes": RANDOM.integers(0, 256, 1000, np.uint8),
    "halves": RANDOM.random((7, 9)).astype(np.float16),
    "turned": RANDOM.random((5, 33)).astype(np.float32).T,
    "numbers": np.arange(12, dtype=np.int64).reshape(3, 4),
    "none": np.zeros((0, 2), np.int64),
}


def wanted() -> list[NewArray]:
    made = [new_array(name, values) for name, values in ARRAYS.items()]

    def fill(out: NDArray[np.uint8]) -> None:
        out[:] = 7

    return [*made, NewArray("sevens", "|u1", (100_000,), fill)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "kept"
    place.mkdir()
    write_arrays(place, wanted(), {"name": "x", "sizes": [1, 2]}, threads=2)
    return place


def test_a_file_of_many_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_folder, "_PIECE_BYTES", 1000)
    write_arrays(tmp_path, wanted(), {"name": "x", "sizes": [1, 2]}, threads=2)
    check(open_arrays(tmp_path))
    assert problem_of(tmp_path) == ""


def check(found: object) -> None:
    assert found is not None
    arrays, about = found  # type: ignore[misc]
    assert about == {"name": "x", "sizes": [1, 2]}
    for name, values in ARRAYS.items():
        assert arrays[name].dtype == values.dtype
        assert np.array_equal(arrays[name], values)
        assert arrays[name].ctypes.data % 64 == 0 or not values.size
        assert not arrays[name].flags.writeable
    assert arrays["sevens"].tolist() == [7] * 100_000


def test_what_is_read_is_what_was_written(folder: Path) -> None:
    check(open_arrays(folder))
    assert problem_of(folder) == ""


def test_in_memory_it_is_the_same(folder: Path) -> None:
    memory, mapped = in_memory(wanted(), threads=2), open_arrays(folder)
    assert mapped is not None
    assert memory.keys() == mapped[0].keys()
    assert all(np.array_equal(memory[name], mapped[0][name]) for name in memory)


def test_opening_reads_nothing_of_a_file_that_nobody_touched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(array_folder, "digest_of", None)  # whoever calls it fails
    check(open_arrays(folder))


def test_a_copy_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    check(open_arrays(copy))
    monkeypatch.setattr(array_folder, "digest_of", None)
    check(open_arrays(copy))


def flipped(file: Path, *, at: int) -> None:
    """Change one byte, and put back the time that a program can put back."""
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    with file.open("r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("at", [0, 500, -1])
def test_a_changed_byte_is_found(folder: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    flipped(folder / DATA_FILE, at=at)
    with caplog.at_level(logging.WARNING):
        assert open_arrays(folder) is None
    assert "not what was written: it is made again" in caplog.text
    assert problem_of(folder) == f"`{DATA_FILE}` was changed"


def test_a_file_that_ends_early_is_found(folder: Path) -> None:
    os.truncate(folder / DATA_FILE, 5000)
    assert open_arrays(folder) is None
    os.truncate(folder / DATA_FILE, 0)
    assert open_arrays(folder) is None
    assert problem_of(folder)


def test_a_table_that_was_changed_is_not_believed(folder: Path) -> None:
    table = json.loads((folder / TABLE_FILE).read_text())
    table["arrays"][0][3] = 64
    (folder / TABLE_FILE).write_text(json.dumps(table))
    assert open_arrays(folder) is None
    assert "not written by this user" in problem_of(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"format": 99}', '{"format": 1, "seal": ""}'])
def test_a_damaged_table_is_no_table(folder: Path, text: str) -> None:
    (folder / TABLE_FILE).write_text(text)
    assert open_arrays(folder) is None


def test_a_missing_folder_is_none(tmp_path: Path) -> None:
    assert open_arrays(tmp_path / "nothing") is None


def test_what_another_user_sealed_is_not_taken(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "other"))
    assert open_arrays(folder) is None
