"""How much memory this process has used, where the system says."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_rss_mb() -> float:
    """Return the largest resident size of this process so far, in 10^6 bytes.

    Source: `VmHWM` on Linux (getrusage's figure outlives exec, so that a child would report its
    parent's size), getrusage(2) in bytes on macOS, the peak working set on Windows.
    """
    if sys.platform == "win32":
        import psutil

        return float(psutil.Process().memory_info().peak_wset) / 1e6
    if _STATUS.exists():
        for line in _STATUS.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 / 1e6
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6
