"""Faults in a GPU's program are found by executing it: a few of each of some kinds.

`python tools/mutate_gpu.py` tries all of them, on four networks and three GPUs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.needs("iree")

TOOL = Path(__file__).resolve().parent.parent / "tools" / "mutate_gpu.py"
KINDS = ("barrier", "wait", "tap", "shared", "operands")


def test_no_fault_is_missed(tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    kinds = [word for kind in KINDS for word in ("--kind", kind)]
    command = [sys.executable, str(TOOL), "--network", "convolutions", "--gpu", "gfx1100", *kinds]
    ended = subprocess.run(
        [*command, "--jobs", "1", "--most", "7", "--json", str(results)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(results.read_text(encoding="utf-8"))
    caught = [row["kind"] for row in found if row["outcome"] == "caught"]
    assert len(caught) >= 5
    assert {"barrier", "wait"} <= set(caught)
