"""What other programs take of the processors while something is measured: the figures lose it."""

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

# The system counts in ticks of 4 or 10 ms for each processor: in a shorter time their error alone
# could be a disturbed share.
_LEAST_S = 0.25


@dataclass(frozen=True)
class Usage:
    """The clock, what all programs have used, and what is known to be one's own, in seconds."""

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


def own_seconds() -> float:
    """Return what this process and all that it started have used of the processors."""
    import psutil

    times = os.times()
    used = times.user + times.system + times.children_user + times.children_system
    for child in psutil.Process().children(recursive=True):
        try:
            theirs = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        used += theirs.user + theirs.system + theirs.children_user + theirs.children_system
    return used


class Neighbours:
    """Watches what others use from when it is made; for at least a quarter of a second."""

    def __init__(self) -> None:
        self._before = usage(own_seconds)

    def share(self) -> float | None:
        """Return the share of others until now; None where the system does not tell."""
        if self._before is None:
            return None
        short_s = _LEAST_S - (time.perf_counter() - self._before.wall_s)
        if short_s > 0.0:
            time.sleep(short_s)
        return share_of_others(self._before, usage(own_seconds))


def disturbance(what: str, share: float | None) -> str:
    """Return the warning that figures of `what` deserve, empty where they deserve none."""
    if share is None or share <= DISTURBED_SHARE:
        return ""
    return (
        f"{what}: other programs used {share:.0%} of the processors meanwhile: measure again when "
        "they are done"
    )
