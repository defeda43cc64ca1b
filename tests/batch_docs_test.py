"""The page `docs/batch.md` tells the truth: its blocks run, in their order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "batch.md"
BLOCK = re.compile(r"^```(python|sh)(.*)\n([\s\S]*?)^```$", re.MULTILINE)


def test_the_blocks_run_in_their_order(tmp_path: Path) -> None:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT / "src"),
        "VERMILION_CACHE": str(tmp_path / "cache"),
    }
    ran = 0
    for kind, rest, body in BLOCK.findall(PAGE.read_text("utf-8")):
        lines = [body] if kind == "python" else body.splitlines()
        for line in lines:
            words = [sys.executable, "-c", line]
            if kind == "sh":
                first, *others = shlex.split(line)
                assert first == "vermilion"
                words = [sys.executable, "-m", "vermilion", *others]
            done = subprocess.run(
                words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
            )
            expected = int(rest.strip().removeprefix("exit=") or 0)
            assert done.returncode == expected, f"{line}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran == 8
    assert len(list((tmp_path / "each").iterdir())) == 50
    assert (tmp_path / "means.npz.failed.json").exists()
