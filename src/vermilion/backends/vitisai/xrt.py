"""What `xrt-smi` says of our process: how many commands it has put to the NPU."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

# Source: Ryzen AI documentation, xrt_smi.rst (Windows), linux.rst (`/opt/xilinx/xrt/setup.sh`).
_PLACES = ("C:/Windows/System32/AMD/xrt-smi.exe", "/opt/xilinx/xrt/bin/xrt-smi")
_LIMIT_S = 10.0
_NOBODY = re.compile(r"no (?:hardware|hw) contexts", re.IGNORECASE)
_SUBMITTED = ("sub", "submissions", "submitted")


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
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    counts = read_partitions(done.stdout) if done.returncode == 0 else None
    return None if counts is None else counts.get(process, 0)


def read_partitions(text: str) -> dict[int, int] | None:
    """Return the commands submitted by process from `xrt-smi examine --report aie-partitions`.

    The columns are found by their heads, `PID` and `Sub`: releases differ in the others. A process
    may have several contexts. None where the text has no such table and does not say that there
    is no context. Source: Ryzen AI documentation, xrt_smi.rst.
    """
    counts: Counter[int] = Counter()
    places: tuple[int, int] | None = None
    was_found = bool(_NOBODY.search(text))
    for line in text.splitlines():
        if "|" not in line:
            places = None
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        heads = [cell.lower() for cell in cells]
        submitted = next((word for word in _SUBMITTED if word in heads), "")
        if "pid" in heads and submitted:
            places = heads.index("pid"), heads.index(submitted)
            was_found = True
        elif places is not None and max(places) < len(cells):
            process, commands = (cells[place] for place in places)
            if process.isdecimal() and commands.isdecimal():
                counts[int(process)] += int(commands)
    return dict(counts) if was_found else None
