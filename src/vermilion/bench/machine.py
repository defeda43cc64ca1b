"""What the machine is, and waiting until this process is idle.

Runtimes let their workers spin for a while after a run, in the hope of more work. Whoever runs
next on the same cores would pay for that, and its figures would be wrong. Measured after a run of
PP-OCRv4 recognition with two threads: ONNX Runtime 1.32 goes on for 33 to 35 ms, OpenVINO 2026.4
for about 1 ms.
"""

from __future__ import annotations

import platform
import sys
import time
from dataclasses import dataclass

from vermilion.hardware.cpu import detect_cpu


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
