"""The commands of the page on promises of accuracy run as it says."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpu_guide_test import steps
from readme_test import environment

PAGE = Path(__file__).parent.parent / "docs" / "quantize.md"


def test_every_command_of_the_page_ends_as_it_says(tmp_path: Path) -> None:
    count = 0
    for words, shown, code in steps(PAGE.read_text(encoding="utf-8"), tmp_path):
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment(tmp_path / "cache"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{shown}\n{done.stdout}\n{done.stderr}"
        count += 1
    assert count == 2  # the tour, and a promise that is kept
