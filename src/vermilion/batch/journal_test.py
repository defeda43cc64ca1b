from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vermilion.batch.job import Range
from vermilion.batch.journal import (
    RANGES_FOLDER,
    Computed,
    finished_ranges,
    missing_ranges,
    range_shapes,
    read_range,
    write_range,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / RANGES_FOLDER).mkdir()
    return tmp_path


def computed(start: int, stop: int, failed: dict[int, str] | None = None) -> Computed:
    rows = stop - start - len(failed or {})
    values = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    return Computed(Range(start, stop), ((values,), (values[:1], values[1:, :2])), failed or {})


def test_what_is_written_is_read(folder: Path) -> None:
    written = computed(4, 8, {5: "no picture"})
    write_range(folder, written)
    found = read_range(folder, Range(4, 8))
    assert found.failed == {5: "no picture"}
    assert found.live == [4, 6, 7]
    for expected, given_ in zip(written.segments, found.segments, strict=True):
        for one, other in zip(expected, given_, strict=True):
            np.testing.assert_array_equal(one, other)
    assert [row.tolist() for row in found.rows(1)] == [[0, 1, 2], [3, 4], [6, 7]]
    assert range_shapes(folder, Range(4, 8))[1] == [
        (np.dtype(np.float32), (1, 3)),
        (np.dtype(np.float32), (2, 2)),
    ]


def test_a_damaged_file_and_one_that_is_not_finished_are_made_again(folder: Path) -> None:
    for start in (0, 4, 8):
        write_range(folder, computed(start, start + 4))
    damaged = folder / RANGES_FOLDER / "000000004-000000008.npz"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 3] ^= 0xFF
    damaged.write_bytes(data)
    (folder / RANGES_FOLDER / ".000000012-000000016.npz.77").write_bytes(b"PK")
    assert finished_ranges(folder) == (Range(0, 4), Range(8, 12))
    assert not damaged.exists()


def test_of_ranges_that_overlap_one_is_kept(folder: Path) -> None:
    for start, stop in ((0, 4), (0, 2), (2, 4), (3, 6), (6, 8)):
        write_range(folder, computed(start, stop))
    assert finished_ranges(folder) == (Range(0, 4), Range(6, 8))
    assert len(list((folder / RANGES_FOLDER).iterdir())) == 2


@given(st.integers(1, 40), st.integers(1, 12), st.sets(st.integers(0, 39)))
def test_done_and_missing_are_all_and_nothing_twice(total: int, length: int, cut: set[int]) -> None:
    wanted = [Range(at, min(at + length, total)) for at in range(0, total, length)]
    edges = sorted({0, total, *(at for at in cut if at < total)})
    done = [Range(a, b) for a, b in zip(edges[::2], edges[1::2], strict=False)]
    missing = missing_ranges(wanted, done)
    assert sorted(at for one in (*done, *missing) for at in range(one.start, one.stop)) == list(
        range(total)
    )
