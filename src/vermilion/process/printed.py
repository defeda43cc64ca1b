"""What a program of the system prints, within a time and a size."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Sequence

_MOST_BYTES = 4 << 20


def printed(command: Sequence[str], limit_s: float, most_bytes: int = _MOST_BYTES) -> str:
    """Run a program to its end and return what it printed; what it left behind is ended with it.

    Raises: OSError where it cannot be started; ValueError where it took or printed too much, or
    failed.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None, "stdout is a pipe"
    late = threading.Timer(limit_s, _end, (process,))
    late.start()
    try:
        data = process.stdout.read(most_bytes + 1)
        if len(data) <= most_bytes:
            process.wait()
    finally:
        late.cancel()
        _end(process)
        process.stdout.close()
        code = process.wait()
    if code or len(data) > most_bytes:
        raise ValueError(f"{command[0]} ended with {code} and {len(data)} bytes")
    return data.decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    if not hasattr(os, "killpg"):
        process.kill()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # nothing of it is left; macOS says so of zombies with EPERM
