"""Devices at work: each takes ranges from the queue, is retried when it dies, and left out at last.

One thread a device waits for its worker; the work itself is in the workers' processes. A worker
has its next range before it is done with one, and never waits for the queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vermilion.batch.devices import BatchDevice
from vermilion.batch.job import Range
from vermilion.batch.work import Status, Work
from vermilion.batch.worker_contract import RangeFailed, Report, Worker, WorkerDied

# Deaths in a row, with nothing computed in between, after which a device is left out.
DEATHS = 5

_LOOK_EVERY_S = 0.2

Start = Callable[[BatchDevice], Worker]
Watch = Callable[[Status], None]


@dataclass
class DeviceRecord:
    """What a device did. `left_out` says why it was, if it was."""

    device: BatchDevice
    runs_on: str = ""
    notes: tuple[str, ...] = ()
    inputs: int = 0
    restarts: int = 0
    read_s: float = 0.0
    run_s: float = 0.0
    peak_rss_mb: float = 0.0
    left_out: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {
            "name": self.device.name,
            "threads": self.device.threads,
            "runs_on": self.runs_on,
            "inputs": self.inputs,
            "restarts": self.restarts,
            "read_s": self.read_s,
            "run_s": self.run_s,
            "peak_rss_mb": self.peak_rss_mb,
            "left_out": self.left_out,
        }


@dataclass
class _Line:
    """A device's thread: its worker, and the deaths since anything was computed."""

    record: DeviceRecord
    work: Work
    start: Start
    worker: Worker | None = None
    ahead: Range | None = None  # the worker was asked for it, behind the one that it computes
    deaths: int = 0
    closing: bool = False
    error: Exception | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        """Take ranges until there are none, or the device is left out."""
        try:
            while not self.record.left_out and (wanted := self._next()) is not None:
                self._one(*wanted)
        except Exception as error:  # it must not leave the other devices waiting for ever
            self.error = error
            self.work.stop()
        finally:
            self.close()

    def close(self) -> None:
        """End the worker and start no other."""
        with self.lock:
            self.closing = True
            worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()

    def _next(self) -> tuple[Range, bool] | None:
        """Return the range that is due, and whether the worker was asked for it already."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            return ahead, True
        taken = self.work.take()
        return None if taken is None else (taken, False)

    def _one(self, wanted: Range, begun: bool) -> None:
        if not self._ready():
            self.work.give_back(wanted)
            return
        try:
            report = self._compute(wanted, begun)
        except RangeFailed as error:
            if error.fatal:
                self.work.stop(str(error))
                self.work.give_back(wanted)
            elif len(wanted) > 1:
                self.work.blame(wanted, str(error))
            else:
                self._judge(wanted, str(error))
        except WorkerDied as error:
            self._judge(wanted, str(error))
        else:
            self.record.inputs += len(wanted)
            self.work.done(wanted, len(report.failed))

    def _judge(self, wanted: Range, words: str) -> None:
        """Blame the range if the device still works after it, else the device."""
        self._died(words)
        if self._proves_itself():
            self.work.blame(wanted, words)
        else:
            self.work.give_back(wanted)

    def _compute(self, wanted: Range, begun: bool) -> Report:
        worker = self.worker
        assert worker is not None, "it is ready"
        if not begun:
            worker.begin(wanted)
        self.ahead = self.work.take_ahead()
        if self.ahead is not None:
            worker.begin(self.ahead)
        return self._finish(worker)

    def _finish(self, worker: Worker) -> Report:
        report = worker.finish()
        self.deaths = 0
        self.record.read_s += report.read_s
        self.record.run_s += report.run_s
        self.record.peak_rss_mb = max(self.record.peak_rss_mb, report.peak_rss_mb)
        return report

    def _ready(self) -> bool:
        """Start a worker where there is none; False when the device is given up."""
        while self.worker is None and not self.record.left_out and not self.work.stopped:
            try:
                worker = self.start(self.record.device)
            except WorkerDied as error:
                self._died(str(error))
                continue
            except RangeFailed as error:
                self.work.stop(str(error))
                return False
            self.record.runs_on, self.record.notes = worker.runs_on, worker.notes
            with self.lock:
                if not self.closing:
                    self.worker = worker
                    continue
            worker.close()
            return False
        return self.worker is not None

    def _died(self, words: str) -> None:
        """Count a death; the device is left out after so many in a row."""
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.close()
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            self.work.give_back(ahead)
        self.deaths += 1
        if self.deaths >= DEATHS:
            self.record.left_out = f"its worker died {self.deaths} times in a row: {words}"
        else:
            self.record.restarts += 1

    def _proves_itself(self) -> bool:
        """Say whether a fresh worker still computes what is known to work.

        Where nothing is known to work yet, the range is blamed: its halves go to the end of the
        queue, and the next death in a row counts against the device as well.
        """
        proof = self.work.proof
        while proof is not None and self._ready():
            worker = self.worker
            assert worker is not None, "it is ready"
            try:
                worker.begin(proof, keep=False)
                self._finish(worker)
            except (WorkerDied, RangeFailed) as error:
                self._died(str(error))
                continue
            return True
        return proof is None and not self.work.stopped


def run_devices(
    devices: Sequence[BatchDevice], work: Work, start: Start, watch: Watch
) -> tuple[DeviceRecord, ...]:
    """Let the devices do the work; give what each did.

    Ends when all is done, when every device is left out, or when the work is stopped; which of
    these, the work knows. Every worker is gone then, also after Ctrl-C.
    """
    lines = [_Line(DeviceRecord(device), work, start) for device in devices]
    threads = [
        threading.Thread(target=line.serve, name=line.record.device.name, daemon=True)
        for line in lines
    ]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                watch(work.status())
                thread.join(_LOOK_EVERY_S)
    finally:
        work.stop()
        for line in lines:
            line.close()
        for thread in threads:
            thread.join()
    for line in lines:
        if line.error is not None:
            raise line.error
    watch(work.status())
    return tuple(line.record for line in lines)
