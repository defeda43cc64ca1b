"""Local workers: processes that compute ranges or die of them, and wait for a job beforehand.

Those that wait load their libraries while the job is planned. Nothing else of this package is
loaded to start them, so that they are under way at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vermilion.batch.devices import BatchDevice, parse_devices, with_threads
from vermilion.batch.job import (
    OPEN_LIMIT_S,
    BatchError,
    Range,
    RangeFailed,
    Report,
    WorkerDied,
)
from vermilion.errors import DeviceError, VermilionError
from vermilion.process.child import Child, ChildError

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
def standing_by(devices: str, threads: int = 0) -> Iterator[Standby]:
    """Start a process for each CPU device; none for GPUs and NPUs, whose drivers load slowly.

    The program may turn out to be for something else than a CPU: then nobody takes them.

    Raises: OptionError for words that are no devices.
    """
    is_other = any(word.strip().startswith(("gpu", "npu")) for word in devices.split(","))
    places = () if is_other else with_threads(parse_devices(devices, "cpu"), threads)
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


LOGS_FOLDER = "logs"


class LocalWorker:
    """A process on this machine."""

    def __init__(
        self, folder: Path, device: BatchDevice, *, limit_s: float, process: Child | None = None
    ) -> None:
        """Hand it the job, and wait until its model is open.

        `process` is one that was started ahead, and is taken over.

        Raises: WorkerDied, also where the device would not open the model; a fatal RangeFailed
        where the model itself is at fault.
        """
        self._limit_s = limit_s
        log = folder / LOGS_FOLDER / f"{device.name.replace(':', '-')}.log"
        log.write_bytes(b"")
        self._child = process or start_process(device, log)
        self._child.log = log
        job = {"folder": str(folder), "log": str(log)}
        try:
            said = self._child.ask(
                "open",
                {**job, "threads": device.threads, "device": device.index},
                limit_s=OPEN_LIMIT_S,
            )
        except ChildError as error:
            self.close()
            if error.raised is None:
                raise _died(error) from error
            words = f"the model could not be opened: {_words(error.raised)}"
            if not isinstance(error.raised, DeviceError):
                raise RangeFailed(words, fatal=True) from error
            raise WorkerDied(words) from error
        self.runs_on = str(said["runs_on"])
        self.notes = tuple(str(note) for note in said["notes"])

    @property
    def process(self) -> int:
        """The process id."""
        return self._child.process

    def begin(self, wanted: Range, *, keep: bool = True) -> None:
        """Ask for a range."""
        self._child.send("compute", {"start": wanted.start, "stop": wanted.stop, "keep": keep})

    def finish(self) -> Report:
        """Return what became of the first range. Raises: WorkerDied, RangeFailed."""
        try:
            said = self._child.receive(self._limit_s)
        except ChildError as error:
            if error.raised is None:
                raise _died(error) from error
            fatal = isinstance(error.raised, BatchError)
            raise RangeFailed(_words(error.raised), fatal=fatal) from error
        return Report(
            {int(at): str(why) for at, why in said["failed"].items()},
            float(said["read_s"]),
            float(said["run_s"]),
            float(said["peak_rss_mb"]),
        )

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self._child.stop()


def _died(error: ChildError) -> WorkerDied:
    return WorkerDied(f"{error.message}: {error.log}" if error.log else error.message)


def _words(error: VermilionError) -> str:
    return str(error).splitlines()[0]
