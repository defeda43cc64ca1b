"""How much memory this process has used, where the system says."""

from __future__ import annotations

import sys


def peak_rss_mb() -> float | None:
    """Give the largest resident size of this process so far, in 10^6 bytes; None if unknown.

    Source: getrusage(2) on Linux (kilobytes) and macOS (bytes); GetProcessMemoryInfo on Windows.
    """
    if sys.platform == "win32":
        return _windows_peak_mb()
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale / 1e6


def _windows_peak_mb() -> float | None:
    if sys.platform != "win32":
        return None
    import ctypes
    from ctypes import wintypes

    class Counters(ctypes.Structure):
        _fields_ = [
            ("cb", wintypes.DWORD),
            ("page_fault_count", wintypes.DWORD),
            ("peak_working_set_size", ctypes.c_size_t),
            *((f"other_{index}", ctypes.c_size_t) for index in range(7)),
        ]

    counters = Counters()
    counters.cb = ctypes.sizeof(counters)
    process = ctypes.windll.kernel32.GetCurrentProcess()
    known = ctypes.windll.psapi.GetProcessMemoryInfo(process, ctypes.byref(counters), counters.cb)
    return counters.peak_working_set_size / 1e6 if known else None
