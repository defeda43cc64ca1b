"""Processes that wait for a job: started first, they load their libraries while the job is planned.

Nothing else of this package is loaded for it, so that they are under way at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vermilion import errors
from vermilion.batch.devices import BatchDevice, parse_devices

_WORKER = ("-P", "-m", "vermilion.batch.worker")


class Standby:
    """Processes by the device that they were started for. For several threads."""

    def __init__(self, processes: dict[BatchDevice, subprocess.Popen[str]]) -> None:
        self._processes = processes

    def add(self, device: BatchDevice, process: subprocess.Popen[str]) -> None:
        """Hold a process for a device."""
        self._processes[device] = process

    def take(self, device: BatchDevice) -> subprocess.Popen[str] | None:
        """Hand over the device's process, if there is one that lives; the first time only."""
        process = self._processes.pop(device, None)
        if process is not None and process.poll() is not None:
            _end(process)
            return None
        return process

    def end(self) -> None:
        """End those that nobody took."""
        while self._processes:
            _, process = self._processes.popitem()
            _end(process)


@contextmanager
def standing_by(devices: str) -> Iterator[Standby]:
    """Start a process for each CPU device; none for GPUs and NPUs, whose drivers load slowly.

    The program may turn out to be for something else than a CPU: then nobody takes them.

    Raises: OptionError for words that are no devices.
    """
    is_other = any(word.strip().startswith(("gpu", "npu")) for word in devices.split(","))
    places = () if is_other else parse_devices(devices, "cpu")
    waiting = Standby({})
    try:
        for device in places:
            waiting.add(device, start_process(device))
        yield waiting
    finally:
        waiting.end()


def start_process(device: BatchDevice, log: Path | None = None) -> subprocess.Popen[str]:
    """Start a worker's process. What it prints goes to `log`, or nowhere until it has a job."""
    cores = ",".join(map(str, device.cores))
    with (log or Path(os.devnull)).open("ab") as errors_to:
        return subprocess.Popen(
            [sys.executable, *_WORKER, cores],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors_to,
            env=environment(),
            encoding="utf-8",
        )


def environment() -> dict[str, str]:
    """Return this process's environment, in which the child finds this same package."""
    root = str(Path(errors.__file__).parent.parent)
    known = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, known] if known else [root]),
        "PYTHONIOENCODING": "utf-8",
    }


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None, "both are pipes"
        pipe.close()
