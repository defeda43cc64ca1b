from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from vermilion.batch.job import (
    RANGES_OF_THE_REST,
    RANGES_PER_DEVICE,
    Job,
    Program,
    Range,
    Slot,
    Source,
    range_length,
)
from vermilion.errors import ArtifactError
from vermilion.ir.pictures import PictureOptions


def job(total: int, batch: int, devices: int) -> Job:
    pictures = PictureOptions((0.5,), (0.25, 0.5, 1.0), "nhwc", (7, 9))
    return Job(
        program=Program("bundle", "model.rai", {"n": 2, "x": (1, 3)}),
        source=Source("pictures", "there", ("a.png",), (0,), pictures),
        slots=(Slot("x", np.dtype(np.float32), (None, 3, 4, 5)), Slot("y", np.dtype("O"), None)),
        outputs=("z",),
        batch=batch,
        total=total,
        range_length=range_length(total, batch, devices),
        devices=devices,
        fingerprint="f",
    )


@pytest.mark.parametrize("total", [1, 7, 8, 9, 257, 1000, 54321])
@pytest.mark.parametrize(("batch", "devices"), [(1, 1), (8, 2), (3, 16)])
def test_ranges_cover_all_inputs_in_whole_batches_and_grow_shorter(
    total: int, batch: int, devices: int
) -> None:
    ranges = job(total, batch, devices).ranges()
    assert (ranges[0].start, ranges[-1].stop) == (0, total)
    assert all(a.stop == b.start for a, b in pairwise(ranges))
    assert all(len(one) % batch == 0 for one in ranges[:-1])
    lengths = [len(one) for one in ranges]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] <= max(batch, total // (devices * RANGES_PER_DEVICE))
    for one in ranges:
        rest = total - one.start
        assert len(one) <= max(batch, rest // (devices * RANGES_OF_THE_REST)), "others would wait"


def test_a_job_is_read_as_it_was_written_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    written = job(100, 8, 2)
    written.write(tmp_path)
    assert Job.read(tmp_path) == written
    (tmp_path / "job.json").write_text("{}")
    with pytest.raises(ArtifactError, match="the job cannot be read"):
        Job.read(tmp_path)


def test_halves() -> None:
    assert Range(4, 9).halves() == (Range(4, 6), Range(6, 9))
