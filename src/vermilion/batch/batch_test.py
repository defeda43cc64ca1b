"""Whole jobs with real workers: real processes that compute, crash natively, and are killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from PIL import Image

import models
from vermilion.batch.assemble import failures_path
from vermilion.batch.batch import _computed, _prepared, run_batch
from vermilion.batch.devices import BatchDevice, parse_devices
from vermilion.batch.job import Job, Range, WorkerDied
from vermilion.batch.journal import finished_ranges, missing_ranges
from vermilion.batch.local_worker import LocalWorker
from vermilion.batch.plan import Request, plan
from vermilion.batch.schedule import DEATHS, Work, run_devices
from vermilion.errors import DeviceError, OptionError, UnsupportedError
from vermilion.ir.execute import open_session, run_session

TWO = "cpu:0,cpu:1"
LOWEST = np.iinfo(np.int64).min
# Float32 through two different kernel libraries: a few hundred sums of rounded products.
TOLERANCE = 1e-4


# Counts to its input, one by one.
COUNTER = """
<ir_version: 8, opset_import: ["": 17]>
counter (int64[1, 1] trips) => (int64[1, 1] y) {
    count = Squeeze(trips)
    zero = Constant <value = int64[1, 1] {0}> ()
    go = Constant <value = bool {1}> ()
    y = Loop <body = step (int64 at, bool on, int64[1, 1] before)
        => (bool still, int64[1, 1] after) {
        one = Constant <value = int64[1, 1] {1}> ()
        after = Add(before, one)
        still = Identity(on)
    }> (count, go, zero)
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models and inputs, which also holds the cache of compiled models."""
    folder = tmp_path_factory.mktemp("batch")
    ir.save(models.small_cnn(batch="n"), folder / "small.onnx")
    ir.save(models.branching_cnn(batch=4), folder / "four.onnx")
    ir.save(divider(), folder / "divider.onnx")
    random = np.random.default_rng(6)
    np.savez(folder / "small.npz", random.standard_normal((37, 3, 16, 16), np.float32))
    np.savez(folder / "four.npz", random.standard_normal((10, 4, 16, 16), np.float32))
    return folder


def divider() -> ir.Model:
    """Integers divided: the lowest one by -1 is a trap of the processor, by 0 an error."""
    net = models.Net("divider", seed=0)
    numbers = [net.input(name, ("n", 2), ir.DataType.INT64) for name in ("a", "b")]
    net.output(net.op("Div", *numbers, name="div"), "y", ("n", 2), ir.DataType.INT64)
    return net.model()


def request(place: Path, name: str, output: Path, **more: Any) -> Request:
    return Request(
        place / f"{name}.onnx", place / f"{name}.npz", output, cache_dir=place / "cache", **more
    )


def reference(place: Path, name: str, rows: NDArray[Any]) -> dict[str, NDArray[Any]]:
    model = ir.load(place / f"{name}.onnx")
    return run_session(open_session(model), {str(model.graph.inputs[0].name): rows})


def outputs(path: Path) -> dict[str, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as stored:
        return dict(stored)


def test_outputs_are_those_of_the_model_in_the_inputs_order(place: Path, tmp_path: Path) -> None:
    done = run_batch(request(place, "small", tmp_path / "two.npz"), devices=TWO)
    assert (done.total, done.batch, done.failed, done.resumed) == (37, 8, (), 0)
    assert sum(record.inputs for record in done.devices) == 37
    assert all("native code" in record.runs_on for record in done.devices)
    expected = reference(place, "small", outputs(place / "small.npz")["arr_0"])
    found = outputs(tmp_path / "two.npz")
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=TOLERANCE, atol=TOLERANCE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two.npz"], "no job is left"

    run_batch(request(place, "small", tmp_path / "one.npz"), devices="cpu")
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()


def test_a_fixed_batch_and_outputs_in_a_folder_by_onnx_runtime(place: Path, tmp_path: Path) -> None:
    asked = request(place, "four", tmp_path / "out", as_it_is=True)
    done = run_batch(asked, devices="cpu")
    assert (done.total, done.batch) == (10, 4)
    assert "ONNX Runtime" in done.devices[0].runs_on
    rows = outputs(place / "four.npz")["arr_0"]
    expected = reference(place, "four", rows[6:10])
    names = [path.name for path in sorted((tmp_path / "out").iterdir())]
    assert names == [f"{at:06d}.npz" for at in range(10)]
    found = outputs(tmp_path / "out" / "000009.npz")
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array[3], rtol=TOLERANCE, atol=TOLERANCE)
    with pytest.raises(OptionError, match="there and not empty"):
        run_batch(asked, devices="cpu")


def test_inputs_that_end_a_worker_or_fail_are_found_and_the_rest_is_done(
    place: Path, tmp_path: Path
) -> None:
    a = np.arange(48, dtype=np.int64).reshape(24, 2)
    b = np.full_like(a, -1)
    a[5, 1] = LOWEST  # ÷ -1: SIGFPE in ONNX Runtime
    b[18, 0] = 0  # an error
    np.savez(tmp_path / "in.npz", a=a, b=b)
    asked = Request(
        place / "divider.onnx", tmp_path / "in.npz", tmp_path / "out.npz", as_it_is=True, batch=2
    )
    done = run_batch(asked, devices="cpu")
    assert [(one.index, one.name) for one in done.failed] == [(5, "in.npz[5]"), (18, "in.npz[18]")]
    assert "the process ended while doing `compute`: SIGFPE" in done.failed[0].reason
    assert "division by zero" in done.failed[1].reason.lower()
    assert done.devices[0].restarts
    assert not done.devices[0].left_out
    expected = -a
    expected[[5, 18]] = LOWEST
    np.testing.assert_array_equal(outputs(tmp_path / "out.npz")["y"], expected)
    assert '"index": 18' in failures_path(tmp_path / "out.npz").read_text()


def test_pictures_of_which_one_is_damaged(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for at in range(5):
        Image.new("RGB", (20, 18), (40 * at, 80, 200)).save(folder / f"{at}.png")
    (folder / "3.png").write_bytes(b"\x89PNG")
    asked = Request(place / "small.onnx", folder, tmp_path / "out.npz", cache_dir=place / "cache")
    done = run_batch(asked, devices="cpu")
    assert [one.name for one in done.failed] == ["3.png"]
    (found,) = outputs(tmp_path / "out.npz").values()
    assert np.isnan(found[3]).all()
    assert np.isfinite(found[[0, 1, 2, 4]]).all()


def test_a_worker_that_is_killed_is_started_again_and_a_device_that_keeps_dying_is_left_out(
    place: Path, tmp_path: Path
) -> None:
    job, folder = prepared(request(place, "small", tmp_path / "out.npz", batch=1), tmp_path)
    left = missing_ranges(job.ranges(), ())
    work = Work(left, job.total, lambda at, why: pytest.fail(f"input {at} is not at fault: {why}"))
    starts: list[str] = []

    def start(device: BatchDevice) -> LocalWorker:
        worker = LocalWorker(folder, device, limit_s=600)
        starts.append(device.name)
        if device.index == 1 or starts.count(device.name) == 1:
            os.kill(worker.process, getattr(signal, "SIGKILL", signal.SIGTERM))
        return worker

    records = run_devices(parse_devices(TWO, "cpu"), work, start, lambda status: None)
    assert [record.restarts for record in records] == [1, DEATHS - 1]
    assert not records[0].left_out
    assert "died" in records[1].left_out
    assert records[0].inputs == job.total
    assert work.is_finished
    assert missing_ranges(job.ranges(), finished_ranges(folder)) == ()


def test_a_worker_that_hangs_is_ended(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(COUNTER), tmp_path / "counter.onnx")
    np.savez(tmp_path / "in.npz", np.array([[3], [1 << 60]]))
    asked = Request(
        tmp_path / "counter.onnx", tmp_path / "in.npz", tmp_path / "y.npz", as_it_is=True
    )
    _, folder = prepared(asked, tmp_path)
    (device,) = parse_devices("cpu", "cpu")
    worker = LocalWorker(folder, device, limit_s=1)
    worker.begin(Range(1, 2))
    with pytest.raises(WorkerDied, match="took more than 1 s"):
        worker.finish()


def prepared(asked: Request, tmp_path: Path) -> tuple[Job, Path]:
    folder = tmp_path / "job"
    folder.mkdir()
    return _prepared(plan(asked).for_devices(2), folder), folder


def test_a_model_that_cannot_be_opened_ends_the_job_at_once(place: Path, tmp_path: Path) -> None:
    job, folder = prepared(request(place, "small", tmp_path / "out.npz"), tmp_path)
    starts: list[str] = []

    def start(device: BatchDevice) -> LocalWorker:
        starts.append(device.name)
        return LocalWorker(folder, device, limit_s=600)

    (Path(job.program.path) / "manifest.json").rename(tmp_path / "kept.json")
    try:
        with pytest.raises(UnsupportedError, match="the model could not be opened"):
            _computed(job, tmp_path / "out.npz", folder, parse_devices("cpu", "cpu"), start, None)
    finally:
        (tmp_path / "kept.json").rename(Path(job.program.path) / "manifest.json")
    assert starts == ["cpu:0"]


def test_without_a_device_that_lives_the_job_ends_and_can_go_on(
    place: Path, tmp_path: Path
) -> None:
    job, folder = prepared(request(place, "small", tmp_path / "out.npz"), tmp_path)

    def start(device: BatchDevice) -> LocalWorker:
        worker = LocalWorker(folder, device, limit_s=600)
        os.kill(worker.process, getattr(signal, "SIGKILL", signal.SIGTERM))
        return worker

    with pytest.raises(DeviceError, match="no device is left: cpu:0: its worker died 5") as caught:
        _computed(job, tmp_path / "out.npz", folder, parse_devices("cpu", "cpu"), start, None)
    assert "--resume" in caught.value.hint


def test_an_unfinished_job_is_only_continued_when_asked_and_when_it_is_the_same(
    place: Path, tmp_path: Path
) -> None:
    asked = request(place, "small", tmp_path / "out.npz")
    folder = tmp_path / "out.npz.job"
    folder.mkdir()
    _prepared(plan(asked).for_devices(1), folder)
    with pytest.raises(OptionError, match="an unfinished job") as caught:
        run_batch(asked)
    assert "--resume" in caught.value.hint
    with pytest.raises(OptionError, match="was for another model, other inputs"):
        run_batch(request(place, "small", tmp_path / "out.npz", batch=2), resume=True)
    assert run_batch(asked, resume=True).total == 37


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("four", {"batch": 2}, "the model's batch is 4, not 2"),
        ("small", {"batch": 0}, "holds nothing"),
        ("none", {}, "no such model"),
    ],
)
def test_requests_that_make_no_sense(
    name: str, more: dict[str, int], message: str, place: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=message):
        run_batch(request(place, name, tmp_path / "out.npz", **more))


def test_an_output_without_a_row_for_each_input_is_refused(tmp_path: Path) -> None:
    net = models.Net("mean", seed=0)
    x = net.input("x", ("n", 2))
    net.output(net.op("ReduceMean", x, name="mean", keepdims=0), "y", ())
    ir.save(net.model(), tmp_path / "mean.onnx")
    np.savez(tmp_path / "in.npz", np.arange(6, dtype=np.float32).reshape(3, 2))
    asked = Request(tmp_path / "mean.onnx", tmp_path / "in.npz", tmp_path / "y.npz", as_it_is=True)
    with pytest.raises(UnsupportedError, match="no row for each input") as caught:
        run_batch(asked, devices="cpu")
    assert "--batch 1" in caught.value.hint
    alone = Request(asked.model, asked.input, asked.output, as_it_is=True, batch=1)
    run_batch(alone, devices="cpu")
    np.testing.assert_allclose(outputs(asked.output)["y"], [0.5, 2.5, 4.5])


@pytest.mark.needs("pyarrow")
def test_parquet_holds_names_and_nulls(place: Path, tmp_path: Path) -> None:
    import pyarrow.parquet as parquet

    a = np.arange(10, dtype=np.int64).reshape(5, 2)
    b = np.ones_like(a)
    b[2] = 0
    np.savez(tmp_path / "in.npz", a=a, b=b)
    asked = Request(
        place / "divider.onnx", tmp_path / "in.npz", tmp_path / "y.parquet", as_it_is=True, batch=1
    )
    run_batch(asked, devices="cpu")
    table = parquet.read_table(tmp_path / "y.parquet")
    assert table.column("input").to_pylist() == [f"in.npz[{at}]" for at in range(5)]
    assert table.column("y").to_pylist() == [[0, 1], [2, 3], None, [6, 7], [8, 9]]
