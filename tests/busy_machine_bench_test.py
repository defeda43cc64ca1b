"""The script that measures on a machine with other work: run whole on a small network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from pages import ROOT


@pytest.mark.skipif(
    not hasattr(psutil.Process(), "cpu_affinity"), reason="this system binds no process to a core"
)
def test_ours_and_the_peer_on_one_core(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    script = str(ROOT / "bench" / "busy_machine_bench.py")
    words = ["--models", "ocr-cls", "--ways", "one", "--rounds", "1", "--seconds", "0.01"]
    done = subprocess.run(
        [sys.executable, script, *words, "--cache", str(tmp_path), "--json", str(file)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text("utf-8"))["results"]
    assert [one["engine"] for one in found] == ["vermilion", "ort", "ort told"]
    for one in found:
        assert one["way"] == "one"
        assert 0 < one["p50_ms"][0] <= one["p90_ms"][0]
        assert one["ratio"][0] > 0
    heads = [line.split()[:3] for line in done.stdout.splitlines()]
    assert heads[0] == ["model", "way", "engine"]
    assert heads[1] == ["ocr-cls", "one", "vermilion"]
