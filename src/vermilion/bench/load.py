"""How busy other programs keep the machine: what they take, the figures lose."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

DISTURBED_SHARE = 0.05
"""More than this share of all processors used by others, and a report warns."""

# Columns of the first line of /proc/stat that count idle time; the last two are parts of others.
# Source: proc(5), `/proc/stat`: user nice system idle iowait irq softirq steal guest guest_nice.
_IDLE = (3, 4)
_COUNTED = 8


@dataclass(frozen=True)
class Usage:
    """The clock, what all programs have used, and what the bench itself has used, in seconds."""

    wall_s: float
    all_s: float
    own_s: float


def usage(own_s: Callable[[], float], stat: Path = Path("/proc/stat")) -> Usage | None:
    """Take the three readings now; None where the system does not tell of all programs."""
    if not stat.is_file():
        return None
    fields = stat.read_text().splitlines()[0].split()[1 : 1 + _COUNTED]
    ticks = sum(int(text) for column, text in enumerate(fields) if column not in _IDLE)
    return Usage(time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), own_s())


def share_of_others(before: Usage | None, after: Usage | None) -> float | None:
    """Return the share of all processors that other programs used between two readings."""
    if before is None or after is None:
        return None
    others_s = (after.all_s - before.all_s) - (after.own_s - before.own_s)
    return max(0.0, others_s / ((after.wall_s - before.wall_s) * (os.cpu_count() or 1)))
