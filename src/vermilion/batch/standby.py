"""Processes that wait for a job: started first, they load their libraries while the job is planned.

Nothing else of this package is loaded for it, so that they are under way at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vermilion.batch.devices import BatchDevice, parse_devices
from vermilion.process.child import Child

_WORKER = ("vermilion.batch.worker",)


class Standby:
    """Processes by the device that they were started for. For several threads."""

    def __init__(self, processes: dict[BatchDevice, Child]) -> None:
        self._processes = processes

    def add(self, device: BatchDevice, process: Child) -> None:
        """Hold a process for a device."""
        self._processes[device] = process

    def take(self, device: BatchDevice) -> Child | None:
        """Hand over the device's process, if there is one that lives; the first time only."""
        process = self._processes.pop(device, None)
        if process is not None and not process.is_alive:
            process.stop()
            return None
        return process

    def end(self) -> None:
        """End those that nobody took."""
        while self._processes:
            _, process = self._processes.popitem()
            process.stop()


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


def start_process(device: BatchDevice, log: Path = Path(os.devnull)) -> Child:
    """Start a worker's process. What it prints goes to `log`, or nowhere until it has a job."""
    return Child(_WORKER, log, who=device.name, cores=device.cores)
