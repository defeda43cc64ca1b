"""How much memory this process has used, where the system says."""

from __future__ import annotations

import sys


def peak_rss_mb() -> float:
    """Give the largest resident size of this process so far, in 10^6 bytes.

    Source: getrusage(2) on Linux (kilobytes) and macOS (bytes); the peak working set on Windows.
    """
    if sys.platform == "win32":
        import psutil

        return float(psutil.Process().memory_info().peak_wset) / 1e6
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6
