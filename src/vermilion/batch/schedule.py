"""Devices at work: each takes ranges from one queue, is retried when it dies, left out at last.

A range that a worker died of is handed out again in halves, after all that is not suspect, until
one input is left; that one is tried once more, and then reported. A device is not believed when it
says that a range is at fault: the scheduler first lets it compute what is known to work.

One thread a device waits for its worker; the work itself is in the workers' processes. A worker
has its next range before it is done with one, and never waits for the queue.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vermilion.batch.devices import BatchDevice
from vermilion.batch.job import Range, RangeFailed, Report, Worker, WorkerDied

# A lone input that ended this many workers is not given to another.
ATTEMPTS = 2


@dataclass(frozen=True)
class Status:
    """How far a job is. `done` counts inputs, those of earlier runs among them."""

    done: int
    total: int
    failed: int
    rate: float  # inputs a second, of this run
    left_s: float | None  # None while nothing is done


class Work:
    """The ranges of a job that are still to be computed. For several threads."""

    def __init__(
        self,
        ranges: Sequence[Range],
        total: int,
        report_failed: Callable[[int, str], None],
        *,
        proof: Range | None = None,
        devices: int = 1,
    ) -> None:
        """Queue `ranges` of a job of `total` inputs; `proof` is a range known to work."""
        self._devices = devices
        self.proof = proof
        self.stopped = False
        self.reason = ""
        self._queue = deque(ranges)
        self._report_failed = report_failed
        self._attempts: Counter[int] = Counter()
        self._in_flight = 0
        self._changed = threading.Condition()
        self._total = total
        self._before = total - sum(map(len, ranges))
        self._now = 0
        self._failed = 0
        self.begin = time.monotonic()

    def take(self) -> Range | None:
        """Return a range to compute, or None when there is and will be none.

        Waits while another device computes something that may come back.
        """
        with self._changed:
            while not self.stopped:
                if self._queue:
                    self._in_flight += 1
                    return self._queue.popleft()
                if not self._in_flight:
                    return None
                self._changed.wait()
            return None

    def take_ahead(self) -> Range | None:
        """Return a range for a device that still computes one, if enough are left for others."""
        with self._changed:
            if self.stopped or len(self._queue) < self._devices:
                return None
            self._in_flight += 1
            return self._queue.popleft()

    def done(self, one: Range, failed: int = 0) -> None:
        """Note that a range is in the journal, with so many inputs that could not be read."""
        with self._changed:
            if failed < len(one):
                self.proof = one
            self._failed += failed
            self._finish(len(one))

    def give_back(self, one: Range) -> None:
        """Let another device compute it: nothing speaks against the range."""
        with self._changed:
            self._queue.appendleft(one)
            self._finish(0)

    def blame(self, one: Range, reason: str) -> None:
        """Note that a worker failed at a range and was not at fault itself."""
        with self._changed:
            if len(one) > 1:
                self._queue.extend(one.halves())
                self._finish(0)
                return
            self._attempts[one.start] += 1
            if self._attempts[one.start] < ATTEMPTS:
                self._queue.append(one)
                self._finish(0)
                return
        self._report_failed(one.start, reason)
        with self._changed:
            self._failed += 1
            self._finish(1)

    def stop(self, reason: str = "") -> None:
        """Hand out nothing more. The first `reason` is kept."""
        with self._changed:
            self.stopped = True
            self.reason = self.reason or reason
            self._changed.notify_all()

    @property
    def is_finished(self) -> bool:
        """Whether every input is computed or reported."""
        with self._changed:
            return self._before + self._now == self._total

    def status(self) -> Status:
        """Say how far it is."""
        with self._changed:
            rate = self._now / max(1e-9, time.monotonic() - self.begin)
            done = self._before + self._now
            left_s = (self._total - done) / rate if self._now else None
            return Status(done, self._total, self._failed, rate, left_s)

    def _finish(self, inputs: int) -> None:
        self._in_flight -= 1
        self._now += inputs
        self._changed.notify_all()


# Deaths in a row, with nothing computed in between, after which a device is left out.
DEATHS = 5

_LOOK_EVERY_S = 0.2

Start = Callable[[BatchDevice], Worker]
Watch = Callable[[Status], None]


@dataclass(frozen=True)
class Span:
    """A range of inputs that a worker had, in seconds from the beginning of the job."""

    begin_s: float
    end_s: float
    inputs: int
    failed: int = 0  # that could not be read
    lost: bool = False  # nothing was kept: it was handed out again


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
    spans: list[Span] = field(default_factory=list)

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
    idle_since: float = 0.0
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
        # What was asked for ahead is begun when the one before it ends.
        begin = self.idle_since if begun else time.monotonic()
        try:
            report = self._compute(wanted, begun)
        except (RangeFailed, WorkerDied) as error:
            self._note(begin, wanted, None)
            self._lost(wanted, error)
        else:
            self._note(begin, wanted, report)
            self.record.inputs += len(wanted)
            self.work.done(wanted, len(report.failed))

    def _lost(self, wanted: Range, error: RangeFailed | WorkerDied) -> None:
        """Find out whether the range or the device is at fault."""
        if isinstance(error, RangeFailed) and error.fatal:
            self.work.stop(str(error))
            self.work.give_back(wanted)
        elif isinstance(error, RangeFailed) and len(wanted) > 1:
            self.work.blame(wanted, str(error))
        else:
            self._judge(wanted, str(error))

    def _note(self, begin: float, wanted: Range, report: Report | None) -> None:
        """Keep when a range was computed, or lost."""
        self.idle_since = time.monotonic()
        seconds = (begin - self.work.begin, self.idle_since - self.work.begin)
        failed = 0 if report is None else len(report.failed)
        self.record.spans.append(Span(*seconds, len(wanted), failed, report is None))

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
