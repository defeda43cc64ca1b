"""What a worker leaves: what it printed, in a file of bounded size; what its exit code means."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from vermilion.plain import open_plain

_LAST_LINES = 3
_MOST_LINE_CHARACTERS = 400
_LONG_BYTES = 1 << 20  # of a worker that stays for days
_MOST_BYTES = 16 << 20
_TAIL_BYTES = 1 << 16

# Windows' exit codes that mean a native fault: ntstatus.h.
_WINDOWS_FAULTS = {
    0xC0000005: "access violation",
    0xC0000409: "fail-fast exception",
    0xC00000FD: "stack overflow",
    0xC0000135: "a library that it needs is missing",
    0xC0000374: "heap corruption",
}

_COLOURS = re.compile(r"\x1b\[[0-9;?]{0,20}[ -/]?[@-~]")


def last_words(log: Path) -> str:
    """Return the last lines of a log, on one line."""
    lines = [_COLOURS.sub("", line).strip() for line in tail(log).splitlines()]
    last = [line for line in lines if line][-_LAST_LINES:]
    return " | ".join(line[-_MOST_LINE_CHARACTERS:] for line in last)


def tail(log: Path, most_bytes: int = _TAIL_BYTES) -> str:
    """Return the end of a log as text; what is no UTF-8 is replaced. Empty where there is none.

    The worker may have put something else in its place: a pipe, which waits for a writer, or a
    link to a device, which has no end.
    """
    try:
        with open_plain(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
            return file.read(most_bytes).decode("utf-8", "replace")
    except OSError:
        return ""


def shorten_log(log: Path) -> None:
    """Empty the log of a worker that stays for days, once it is long."""
    _cut(log, _LONG_BYTES, b"")


def bound_log(log: Path) -> None:
    """Keep the end alone of a log that grows without end. The worker goes on at the new end."""
    try:
        if log.stat().st_size <= _MOST_BYTES:
            return
    except OSError:
        return  # it is not there
    _cut(log, _MOST_BYTES, tail(log).encode())


def _cut(log: Path, longer_than: int, kept: bytes) -> None:
    try:
        if log.is_file() and log.stat().st_size > longer_than:
            os.truncate(log, 0)
            with log.open("ab") as file:
                file.write(kept)
    except OSError:
        return  # it is not there, or the disk is full


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
