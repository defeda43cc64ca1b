"""The peak memory of this very program, not of whoever started it."""

from __future__ import annotations

from pathlib import Path

from vermilion.memory import peak_rss_mb


def own_peak_rss_mb() -> float | None:
    """Give the largest resident size since this program was loaded, in 10^6 bytes.

    On Linux getrusage(2) cannot be used in a child: its figure outlives exec(2), so a child of a
    large process reports that process's size. Source: proc(5), `VmHWM` of /proc/pid/status.
    """
    status = Path("/proc/self/status")
    if not status.is_file():
        return peak_rss_mb()
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return peak_rss_mb()
