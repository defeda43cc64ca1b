"""The one queue that devices take work from, and who is to blame when a worker dies.

A range that a worker died of is handed out again in halves, after all that is not suspect, until
one input is left; that one is tried once more, and then reported. A device is not believed when it
says that a range is at fault: the scheduler first lets it compute what is known to work.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vermilion.batch.job import Range

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
        self._begin = time.monotonic()

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
            rate = self._now / max(1e-9, time.monotonic() - self._begin)
            done = self._before + self._now
            left_s = (self._total - done) / rate if self._now else None
            return Status(done, self._total, self._failed, rate, left_s)

    def _finish(self, inputs: int) -> None:
        self._in_flight -= 1
        self._now += inputs
        self._changed.notify_all()
