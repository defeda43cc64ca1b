"""What the exit code of a process means."""

from __future__ import annotations

import signal

# Windows' exit codes that mean a native fault: ntstatus.h.
_WINDOWS_FAULTS = {
    0xC0000005: "access violation",
    0xC0000409: "fail-fast exception",
    0xC00000FD: "stack overflow",
    0xC0000135: "a library that it needs is missing",
    0xC0000374: "heap corruption",
}


def exit_words(code: int) -> str:
    """Say what an exit code means."""
    fault = _WINDOWS_FAULTS.get(code & 0xFFFFFFFF)
    if fault:
        return f"0x{code & 0xFFFFFFFF:08X}, {fault}"
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if number:
        name = next((s.name for s in signal.Signals if s.value == number), f"signal {number}")
        words = " (access violation)" if name == "SIGSEGV" else ""
        return f"{name}{words}"
    return f"exit code {code}"
