from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import models
from commands import Command, command_line
from vermilion.batch.journal import RANGES_FOLDER
from vermilion.batch.schedule import Status
from vermilion.cli.batch import words

ROOT = Path(__file__).parents[3]
ROWS = 256


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch")
    ir.save(models.resnet18(batch="n", image=64), folder / "resnet.onnx")
    ir.save(models.small_cnn(batch="n"), folder / "small.onnx")
    random = np.random.default_rng(6)
    np.savez(folder / "resnet.npz", random.standard_normal((ROWS, 3, 64, 64), np.float32))
    np.savez(folder / "small.npz", random.standard_normal((11, 3, 16, 16), np.float32))
    return folder


@pytest.fixture
def run(place: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return command_line(capfd, monkeypatch, place / "cache")


def test_killed_in_the_middle_and_resumed_gives_the_same_bytes(
    place: Path, tmp_path: Path, run: Command
) -> None:
    job = ["batch", str(place / "resnet.onnx"), "--ort", "--input", str(place / "resnet.npz")]
    job += ["--devices", "cpu:0,cpu:1", "--batch", "2"]
    whole, cut = tmp_path / "whole.npz", tmp_path / "cut.npz"

    ranges = tmp_path / "cut.npz.job" / RANGES_FOLDER
    killed = subprocess.Popen(
        [sys.executable, "-m", "vermilion", *job, "-o", str(cut)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stderr=subprocess.DEVNULL,
    )
    while killed.poll() is None and len(list(ranges.glob("[0-9]*.npz"))) < 4:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert killed.returncode != 0, "it was done before it could be killed"
    assert not cut.exists()
    settled = settle(ranges)

    done = run(*job, "-o", cut, "--resume", "--json").data
    assert done["resumed"] == inputs_in(settled), "what was done is not done again"
    assert sum(device["inputs"] for device in done["devices"]) == ROWS - done["resumed"]
    assert run(*job, "-o", whole).code == 0
    assert cut.read_bytes() == whole.read_bytes()
    assert not ranges.exists()


def settle(ranges: Path) -> list[str]:
    """Return the range files once the killed job's workers have noticed and are gone."""
    before: list[str] = []
    while True:
        now = sorted(path.name for path in ranges.glob("*.npz"))
        if before == now:
            return now
        before = now
        time.sleep(0.5)


def inputs_in(range_files: list[str]) -> int:
    """Return the number of inputs in files that are named START-STOP.npz."""
    bounds = [name.removesuffix(".npz").split("-") for name in range_files]
    return sum(int(stop) - int(start) for start, stop in bounds)


def test_what_people_and_machines_read(place: Path, tmp_path: Path, run: Command) -> None:
    job = ("batch", place / "small.onnx", "--input", place / "small.npz", "--devices", "cpu")
    data = run(*job, "-o", tmp_path / "a.npz", "--json").data
    assert (data["inputs"], data["batch"], data["failed"], data["resumed"]) == (11, 8, [], 0)
    assert data["output"] == str(tmp_path / "a.npz")
    assert data["inputs_per_s"] > 0
    assert [device["name"] for device in data["devices"]] == ["cpu:0"]
    assert data["placement"] == "8 of 8 operators native"
    shown = run(*job, "-o", tmp_path / "b.npz", "--threads", "1").words
    assert "11 inputs in batches of 8" in shown
    assert ", 1 thread)" in shown
    assert "8 of 8 operators native" in shown
    assert f"written to {tmp_path / 'b.npz'}" in shown


def test_inputs_that_fail_are_exit_code_1_and_the_rest_is_there(
    place: Path, tmp_path: Path, run: Command
) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    (pictures / "a.png").write_bytes(b"nothing")
    np.savez(tmp_path / "one.npz", np.zeros((1, 3, 16, 16), np.float32))
    from PIL import Image

    Image.new("RGB", (16, 16)).save(pictures / "b.png")
    done = run("batch", place / "small.onnx", "--input", pictures, "-o", tmp_path / "out", "--json")
    assert done.code == 1
    assert [one["name"] for one in done.data["failed"]] == ["a.png"]
    assert "1 of 2 inputs have no outputs" in done.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.png.npz"]


def test_where_a_model_runs_stands_behind_its_name(
    place: Path, tmp_path: Path, run: Command
) -> None:
    job = ("--input", place / "small.npz", "--devices", "cpu", "-o", tmp_path / "a.npz", "--json")
    data = run("batch", f"{place / 'small.onnx'}@onnxruntime", *job).data
    assert data["placement"] == ""
    assert "ONNX Runtime" in data["devices"][0]["runs_on"]
    twice = run("batch", f"{place / 'small.onnx'}@cpu", "--ort", *job)
    assert (twice.code, "stands behind the model's name" in twice.err) == (2, True)
    gone = run("batch", place / "none.onnx@cpu", *job)
    assert (gone.code, "no such model" in gone.err) == (2, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--output", "out.txt"), "neither NAME.npz, NAME.parquet nor a folder"),
        (("--engine", "slurm"), "no engine is called `slurm`"),
        (("--address", "here:1"), "only Ray has an address"),
        (("--devices", "gpu:0"), "for a CPU and `gpu:0` is none"),
        (("--layout", "hwcn"), "unknown layout"),
        (("--resize", "3"), "is not HEIGHTxWIDTH"),
        (("--mean", "a"), "not a list of numbers"),
        (("--input", "none"), "does not exist"),
    ],
)
def test_wrong_use_is_exit_code_2(
    options: tuple[str, ...], message: str, place: Path, tmp_path: Path, run: Command
) -> None:
    given = {"--input": str(place / "small.npz"), "--output": str(tmp_path / "out.npz")}
    given[options[0]] = options[1]
    done = run("batch", place / "small.onnx", "--ort", *(w for pair in given.items() for w in pair))
    assert (done.code, message in done.err) == (2, True), done.err
    assert not list(tmp_path.iterdir())


def test_rate_and_time_left_in_words() -> None:
    assert words(Status(0, 10, 0, 0.0, None)) == "0.0/s"
    assert words(Status(5, 10, 2, 41.23, 75.4)) == "41.2/s, 1:15 left, 2 failed"
    assert words(Status(5, 10, 0, 1.0, 3723)) == "1.0/s, 1:02:03 left"
