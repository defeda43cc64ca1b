"""The scripts that measure calibration's parts: each run whole on a small network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT
from vermilion.quantize.native_code import this_isa

BENCH = ROOT / "bench"


def run(script: str, *words: str, folder: Path) -> tuple[str, list[dict[str, Any]]]:
    """Return what a script prints, and the records that it writes."""
    file = folder / "found.json"
    done = subprocess.run(
        [sys.executable, str(BENCH / script), "--models", "cls", *words, "--json", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(file.read_text("utf-8"))["results"]


@pytest.mark.skipif(not this_isa().has_bf16, reason="this machine has no AVX-512 BF16")
def test_samples_in_our_kernels_and_in_onnx_runtime(tmp_path: Path) -> None:
    printed, found = run("calibration_bench.py", "--samples", "5", "--turns", "1", folder=tmp_path)
    assert [one["engine"] for one in found] == ["onnxruntime", "own kernels", "quantize"]
    for one in found:
        assert one["samples"] == 5
        assert 0 < one["next_ms"] < one["all_ms"]
        assert 0 < one["first_ms"] < one["all_ms"]
    assert [line.split()[0] for line in printed.splitlines()] == ["model", "cls", "cls", "cls"]


def test_sessions_opened_in_four_ways(tmp_path: Path) -> None:
    printed, found = run("open_bench.py", "--turns", "1", folder=tmp_path)
    assert [one["way"] for one in found] == ["fed", "lent", "serialized", "optimized"]
    for one in found:
        assert one["open_ms"] > 0
        assert one["run_ms"] > 0
        # All of them run the same network.
        assert one["outputs"] == pytest.approx(found[0]["outputs"], rel=1e-5)
    assert len(printed.splitlines()) == 1 + len(found)
