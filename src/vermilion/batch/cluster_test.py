"""The same jobs on a Ray cluster of this machine: one is started, and its actors really die."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import models
from vermilion.batch.batch import run_batch
from vermilion.batch.batch_test import LOWEST, divider, outputs
from vermilion.batch.cluster import _runtime_environment
from vermilion.batch.journal import RANGES_FOLDER
from vermilion.batch.plan import Request
from vermilion.errors import DeviceError
from vermilion.process.child import environment

ROOT = Path(__file__).parents[3]
TWO = "cpu:0,cpu:1"


def on_ray(job: str, folder: Path) -> None:
    """Run a job in a process of its own: Ray lives as long as the process that joined it."""
    head = """
        from pathlib import Path
        from vermilion.batch.batch import run_batch
        from vermilion.batch.plan import Request
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(job)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.needs("ray")
def test_ray_gives_the_same_bytes_and_finds_the_input_that_ends_its_workers(tmp_path: Path) -> None:
    ir.save(models.small_cnn(batch="n"), tmp_path / "small.onnx")
    ir.save(divider(), tmp_path / "divider.onnx")
    random = np.random.default_rng(6)
    np.savez(tmp_path / "small.npz", random.standard_normal((37, 3, 16, 16), np.float32))
    a = np.arange(24, dtype=np.int64).reshape(12, 2)
    a[5, 1] = LOWEST  # ÷ -1: SIGFPE in ONNX Runtime
    np.savez(tmp_path / "divider.npz", a=a, b=np.full_like(a, -1))
    small = Request(
        tmp_path / "small.onnx",
        tmp_path / "small.npz",
        tmp_path / "local.npz",
        cache_dir=tmp_path / "cache",
    )
    run_batch(small, devices=TWO)
    on_ray(
        """
        small = Request(
            Path("small.onnx"), Path("small.npz"), Path("ray.npz"), cache_dir=Path("cache")
        )
        import ray
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        done = run_batch(small, devices="cpu:0,cpu:1", engine="ray")
        assert sum(record.inputs for record in done.devices) == 37
        divider = Request(
            Path("divider.onnx"), Path("divider.npz"), Path("y.npz"), as_it_is=True, batch=2
        )
        done = run_batch(divider, devices="cpu:0,cpu:1", engine="ray")
        said = [[one.index for one in done.failed], sum(r.restarts for r in done.devices)]
        Path("said.txt").write_text(repr(said))
        """,
        tmp_path,
    )
    assert (tmp_path / "said.txt").read_text() == "[[5], 3]"
    assert (tmp_path / "ray.npz").read_bytes() == (tmp_path / "local.npz").read_bytes()
    expected = -a
    expected[5] = LOWEST
    np.testing.assert_array_equal(outputs(tmp_path / "y.npz")["y"], expected)


@pytest.mark.needs("ray")
def test_a_job_on_ray_that_is_killed_goes_on_with_the_same_bytes(tmp_path: Path) -> None:
    ir.save(models.resnet18(batch="n", image=64), tmp_path / "resnet.onnx")
    random = np.random.default_rng(6)
    rows = random.standard_normal((128, 3, 64, 64), np.float32)
    np.savez(tmp_path / "resnet.npz", rows)
    asked = Request(
        tmp_path / "resnet.onnx",
        tmp_path / "resnet.npz",
        tmp_path / "whole.npz",
        as_it_is=True,
        batch=2,
    )
    run_batch(asked, devices=TWO)
    command = [sys.executable, "-m", "vermilion", "batch", "resnet.onnx", "--ort", "--batch", "2"]
    command += ["--input", "resnet.npz", "--devices", TWO, "-o", "cut.npz", "--engine", "ray"]
    ranges = tmp_path / "cut.npz.job" / RANGES_FOLDER
    with (tmp_path / "said.txt").open("w") as said:
        killed = subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=said)
    while killed.poll() is None and len(list(ranges.glob("[0-9]*.npz"))) < 3:
        time.sleep(0.01)
    killed.kill()
    assert killed.wait() != 0, "it was done before it could be killed"
    before = {path.name: path.stat().st_mtime_ns for path in ranges.glob("*.npz")}
    assert len(before) >= 3, (tmp_path / "said.txt").read_text()
    resumed = subprocess.run(
        [*command, "--resume", "--json"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    known = sum(int(name[10:19]) - int(name[:9]) for name in before)
    said_of_it = json.loads(resumed.stdout)
    assert said_of_it["resumed"] == known, "what was done is not done again"
    assert sum(device["inputs"] for device in said_of_it["devices"]) == 128 - known
    assert (tmp_path / "cut.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_workers_are_told_where_the_package_is_only_if_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = str(ROOT / "src")
    monkeypatch.setenv("PYTHONPATH", root)
    told = _runtime_environment()
    assert told is not None, "another tree than the installed one may be meant"
    assert root in told["env_vars"]["PYTHONPATH"]
    monkeypatch.delenv("PYTHONPATH")
    installed = any(metadata.Distribution.discover(name="vermilion"))
    assert (_runtime_environment() is None) == installed


@pytest.mark.needs("ray")
@pytest.mark.parametrize("address", ["127.0.0.1:1", None])
def test_an_address_where_no_cluster_answers(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:2")
    ir.save(models.small_cnn(batch="n"), tmp_path / "small.onnx")
    np.savez(tmp_path / "small.npz", np.zeros((2, 3, 16, 16), np.float32))
    asked = Request(
        tmp_path / "small.onnx", tmp_path / "small.npz", tmp_path / "out.npz", as_it_is=True
    )
    with pytest.raises(DeviceError, match="no Ray cluster answers") as caught:
        run_batch(asked, engine="ray", address=address)
    assert caught.value.where == f"--address {address or '127.0.0.1:2'}"
    assert not (tmp_path / "out.npz.job").exists()
