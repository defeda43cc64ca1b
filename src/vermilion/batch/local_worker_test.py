"""Processes that are started before there is a job, and what a process loads that does one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import psutil
import pytest
from PIL import Image

import models
from vermilion.api import compile_model
from vermilion.batch.batch import run_batch
from vermilion.batch.local_worker import standing_by
from vermilion.batch.plan import Request
from vermilion.errors import OptionError
from vermilion.process.child import environment

TWO = "cpu:0,cpu:1"
HEAVY = (
    "sympy",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "torch",
    "llvmlite",
    "rich",
    "ray",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled model, arrays and pictures."""
    folder = tmp_path_factory.mktemp("standby")
    ir.save(models.small_cnn(batch="n"), folder / "small.onnx")
    dims = {"n": 4}
    compile_model(folder / "small.onnx", dims=dims, output=folder / "small.rai", cache_dir=folder)
    (folder / "pictures").mkdir()
    for at in range(6):
        Image.new("RGB", (20, 18), (40 * at, 80, 200)).save(folder / "pictures" / f"{at}.png")
    np.savez(folder / "in.npz", np.ones((6, 3, 16, 16), np.float32))
    return folder


def modules_of(code: str, folder: Path) -> str:
    """Run code and give which heavy modules it loaded."""
    code += f"\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("inputs", ["pictures", "in.npz"])
def test_a_job_of_a_compiled_model_loads_no_library_of_graphs(
    inputs: str, place: Path, tmp_path: Path
) -> None:
    command = ["batch", "small.rai", "--input", inputs, "--json", "-o", str(tmp_path / "out.npz")]
    parent = f"from vermilion.cli import main\nassert main({command!r}) == 0"
    assert modules_of(parent, place) == "[]"


@pytest.mark.parametrize("inputs", ["pictures", "in.npz"])
def test_nor_does_a_worker(inputs: str, place: Path) -> None:
    worker = f"""
from pathlib import Path
from vermilion.batch.compute import Computer, open_program
from vermilion.batch.job import Range
from vermilion.batch.plan import Request, plan
import vermilion.batch.worker
import vermilion.process.child
job = plan(Request(Path("small.rai"), Path({inputs!r}), Path("never.npz"))).job
computed, _ = Computer(job, open_program(job.program, job.outputs, 1, 0)).compute(Range(0, 6))
assert len(computed.live) == 6, computed.failed
"""
    assert modules_of(worker, place) == "[]"


def test_nor_does_running_a_compiled_model_once(place: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", input=np.ones((4, 3, 16, 16), np.float32))
    command = ["run", "small.rai", "--input", str(tmp_path / "one.npz"), "--json"]
    once = f"from vermilion.cli import main\nassert main({command!r}) == 0"
    assert modules_of(once, place) == "[]"


def test_processes_that_stand_by_do_the_job_and_a_dead_one_is_replaced(
    place: Path, tmp_path: Path
) -> None:
    asked = Request(place / "small.rai", place / "in.npz", tmp_path / "out.npz")
    with standing_by(TWO) as standby:
        started = {child.pid for child in psutil.Process().children()}
        first, second = standby._processes.values()
        assert {first.process, second.process} <= started
        psutil.Process(first.process).kill()
        while first.is_alive:
            time.sleep(0.01)
        done = run_batch(asked, devices=TWO, standby=standby)
        assert not second.is_alive, "taken, and ended with its work"
    assert done.total == 6
    assert not any(record.restarts for record in done.devices), "a dead one was not taken"
    assert not {first.process, second.process} & {
        child.pid for child in psutil.Process().children()
    }


def test_processes_that_nobody_takes_are_ended() -> None:
    with standing_by("cpu") as standby:
        (process,) = standby._processes.values()
        assert process.is_alive
    assert not process.is_alive


@pytest.mark.parametrize("devices", ["gpu:0", "npu"])
def test_none_are_started_for_other_devices(devices: str) -> None:
    with standing_by(devices) as standby:
        assert not standby._processes


def test_words_that_are_no_devices() -> None:
    with pytest.raises(OptionError, match="`tpu` is no device"), standing_by("tpu"):
        pass
