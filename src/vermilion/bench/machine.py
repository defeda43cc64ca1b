"""What the machine is and how busy: what other programs take, the figures lose.

Runtimes let their workers spin for a while after a run, in the hope of more work. Whoever runs
next on the same cores would pay for that, and its figures would be wrong. Measured after a run of
PP-OCRv4 recognition with two threads: ONNX Runtime 1.32 goes on for 33 to 35 ms, OpenVINO 2026.4
for about 1 ms.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vermilion.hardware.cpu import detect_cpu

DISTURBED_SHARE = 0.05
"""More than this share of all processors used by others, and a report warns."""

# Columns of the first line of /proc/stat that count idle time; the last two are parts of others.
# Source: proc(5), `/proc/stat`: user nice system idle iowait irq softirq steal guest guest_nice.
_IDLE = (3, 4)
_COUNTED = 8


@dataclass(frozen=True)
class Machine:
    """Where it was measured."""

    cpu: str
    core: str
    cores: int
    system: str

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {"cpu": self.cpu, "core": self.core, "cores": self.cores, "system": self.system}


def this_machine() -> Machine:
    """Describe the machine that this runs on."""
    cpu = detect_cpu()
    return Machine(
        cpu.brand, cpu.core, cpu.physical_cores or cpu.logical_cores, platform.platform()
    )


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


# Longer than the tick at which the system adds up what other threads have used while they run:
# 4 or 10 ms on Linux, 15.6 ms on Windows. In a shorter window a spinning thread is not seen.
WINDOW_S = 0.032 if sys.platform == "win32" else 0.012
WINDOWS_IN_A_ROW = 3

# Less of a window than this is sleep: waking up for the window's end takes about 1 % of it.
BUSY_SHARE = 0.1

GIVE_UP_S = 1.0


def wait_until_quiet(give_up_s: float = GIVE_UP_S) -> float | None:
    """Sleep until all threads of this process have been idle; None if that does not happen.

    Units: milliseconds from the call to the beginning of the idle time.
    """
    begin = time.perf_counter()
    quiet_since, windows = begin, 0
    while True:
        wall, used = time.perf_counter(), time.process_time()
        time.sleep(WINDOW_S)
        now = time.perf_counter()
        if time.process_time() - used > BUSY_SHARE * (now - wall):
            quiet_since, windows = now, 0
        else:
            windows += 1
        if windows == WINDOWS_IN_A_ROW:
            return (quiet_since - begin) * 1e3
        if now - begin > give_up_s:
            return None
