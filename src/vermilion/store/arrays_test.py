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

from vermilion.store import arrays, entry
from vermilion.store.arrays import (
    DATA_FILE,
    NewArray,
    arrays_of,
    in_memory,
    new_array,
    write_arrays,
)
from vermilion.store.entry import INDEX_FILE, Entry
from vermilion.store.namespaces import IMAGES
from vermilion.store.store import Store

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


def made(root: Path) -> Entry:
    about = {"name": "x", "sizes": [1, 2]}
    found = Store(root).get_or_make(
        IMAGES, "key", lambda writer: write_arrays(writer, wanted(), about, threads=2)
    )
    assert found is not None
    return found


def opened(root: Path) -> Entry | None:
    return Store(root).find(IMAGES, "key")


def problem(root: Path) -> str:
    (check,) = Store(root).verify()
    return check.problem


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made(tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def folder(root: Path) -> Path:
    return root / IMAGES.name / "key"


def test_a_file_of_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "_CHUNK_BYTES", 1000)
    check(made(tmp_path))
    assert problem(tmp_path) == ""


def check(found: Entry | None) -> None:
    assert found is not None
    mapped, about = arrays_of(found)
    assert about == {"name": "x", "sizes": [1, 2]}
    for name, values in ARRAYS.items():
        assert mapped[name].dtype == values.dtype
        assert np.array_equal(mapped[name], values)
        assert mapped[name].ctypes.data % 64 == 0 or not values.size
        assert not mapped[name].flags.writeable
    assert mapped["sevens"].tolist() == [7] * 100_000


def test_what_is_read_is_what_was_written(root: Path) -> None:
    check(opened(root))
    assert problem(root) == ""


def test_in_memory_it_is_the_same(root: Path) -> None:
    memory, found = in_memory(wanted(), threads=2), opened(root)
    assert found is not None
    mapped, _ = arrays_of(found)
    assert memory.keys() == mapped.keys()
    assert all(np.array_equal(memory[name], mapped[name]) for name in memory)


def test_opening_reads_nothing_of_a_file_that_nobody_touched(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry, "digest_of", None)  # whoever calls it fails
    check(opened(root))


def test_a_copy_is_read_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    check(opened(copy))
    monkeypatch.setattr(entry, "digest_of", None)
    check(opened(copy))


def flipped(file: Path, *, at: int) -> None:
    """Change one byte, and put back the time that a program can put back."""
    before = file.stat()
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    with file.open("r+b") as opened:
        opened.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("at", [0, 500, -1])
def test_a_changed_byte_is_found(
    root: Path, folder: Path, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    flipped(folder / DATA_FILE, at=at)
    assert opened(root) is None
    assert problem(root) == f"`{DATA_FILE}` is not what was written: it was changed"
    with caplog.at_level(logging.WARNING):
        check(made(root))
    assert "is made again" in caplog.text


def test_a_file_that_ends_early_is_found(root: Path, folder: Path) -> None:
    os.truncate(folder / DATA_FILE, 5000)
    assert opened(root) is None
    os.truncate(folder / DATA_FILE, 0)
    assert opened(root) is None
    assert problem(root)


def test_an_index_that_was_changed_is_not_believed(root: Path, folder: Path) -> None:
    index = json.loads((folder / INDEX_FILE).read_text())
    index["entry"]["about"]["arrays"][0][3] = 64
    (folder / INDEX_FILE).write_text(json.dumps(index))
    assert opened(root) is None
    assert "not written by this user" in problem(root)
