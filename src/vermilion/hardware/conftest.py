"""Recorded machines: what `pnputil` prints, and sysfs trees written as lines of text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def recorded_text() -> Callable[[str], str]:
    """Return the text of a recorded file."""
    return lambda name: (RECORDED / name).read_text(encoding="utf-8")


@pytest.fixture
def recorded_sysfs(tmp_path: Path) -> Callable[[str], Path]:
    """Build the sysfs tree of a recorded Linux machine and give its root."""

    def build(name: str) -> Path:
        root = tmp_path / "sys"
        for line in (RECORDED / f"linux_{name}.txt").read_text().splitlines():
            if " -> " in line:
                path, _, target = line.partition(" -> ")
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).symlink_to(root / target, target_is_directory=True)
            else:
                path, _, text = line.partition(": ")
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text.replace("\\n", "\n") + "\n")
        return root

    return build
