"""Asking `xrt-smi` whether a process puts commands to the NPU: proof beyond anyone's words."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from vermilion.backends.vitisai.evidence import read_partitions

# Source: Ryzen AI documentation, xrt_smi.rst (Windows), linux.rst (`/opt/xilinx/xrt/setup.sh`).
_PLACES = ("C:/Windows/System32/AMD/xrt-smi.exe", "/opt/xilinx/xrt/bin/xrt-smi")
_LIMIT_S = 10.0


def find_xrt_smi(places: Sequence[str] = _PLACES) -> str:
    """Return the tool's path, empty where there is none."""
    found = shutil.which("xrt-smi")
    if found:
        return found
    return next((place for place in places if Path(place).is_file()), "")


def submitted_commands(process: int, tool: str | None = None) -> int | None:
    """Return how many commands a process has put to the NPU; None where nobody can tell."""
    program = find_xrt_smi() if tool is None else tool
    if not program:
        return None
    try:
        done = subprocess.run(
            [program, "examine", "--report", "aie-partitions"],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return read_partitions(done.stdout).get(process, 0) if done.returncode == 0 else None
