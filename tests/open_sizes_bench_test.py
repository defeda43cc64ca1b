"""The script that measures programs for all sizes: run whole on a small network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pages import ROOT


def test_every_engine_at_every_size_and_in_a_stream(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ["--small", "--networks", "encoder", "--rounds", "1", "--stream", "3"]
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "open_sizes_bench.py", *words, "--json", file],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "encoder: " in done.stdout
    assert "operators native" in done.stdout
    found = json.loads(file.read_text("utf-8"))
    engines = {row["engine"] for row in found["sizes"]}
    assert {"open", "fixed", "onnxruntime"} <= engines
    assert len(found["sizes"]) == 5 * len(engines)
    assert all(row["ratio"]["median"] > 0 for row in found["sizes"])
    assert {row["engine"] for row in found["stream"]} == engines - {"fixed"}
