"""Requests that wait for a network, and which of them run together."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from vermilion.errors import VermilionError
from vermilion.serve.refusals import NotReadyError, QueueFullError

Array = NDArray[Any]
Outputs = Mapping[str, Array]

# Of how long a run takes: what was before counts less and less.
_SMOOTH = 0.9


@dataclass(eq=False)
class Job:
    """One request. Those of one `form` may share a batch; None: it runs alone."""

    inputs: Mapping[str, Array]
    rows: int
    form: Hashable | None
    until: float  # on the monotonic clock
    done: Future[Outputs] = field(default_factory=Future)
    tries: int = 0
    is_taken: bool = False
    entered: float = field(default_factory=time.monotonic)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody still waits for it."""
        return not self.done.cancelled() and time.monotonic() < self.until

    def begin(self) -> bool:
        """Say whether it is to be computed; from then on nobody can take it back."""
        if not self.is_taken:
            self.is_taken = self.done.set_running_or_notify_cancel()
        return self.is_taken

    def answer(self, outputs: Outputs) -> None:
        """Hand over the outputs."""
        self.done.set_result(outputs)

    def refuse(self, error: VermilionError) -> None:
        """Hand over why there are none; whoever has left meanwhile is not told."""
        with suppress(InvalidStateError):
            self.done.set_exception(error)


class JobQueue:
    """For any number of threads that put and take."""

    def __init__(
        self,
        *,
        most_waiting: int,
        most_rows: int,
        delay_s: float,
        on_length: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._most_waiting, self._most_rows, self._delay_s = most_waiting, most_rows, delay_s
        self._on_length = on_length
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_open = True
        self._run_s = 0.0  # about, for a batch

    def put(self, job: Job) -> None:
        """Let a job wait. Raises: QueueFullError, NotReadyError."""
        with self._changed:
            if not self._is_open:
                raise NotReadyError("the model is being unloaded")
            if len(self._waiting) >= self._most_waiting:
                self._drop_unwanted()
            if len(self._waiting) >= self._most_waiting:
                batches = math.ceil(len(self._waiting) / self._most_rows)
                raise QueueFullError(
                    f"{len(self._waiting)} requests wait for the model",
                    retry_after_s=max(1, math.ceil(batches * self._run_s)),
                )
            self._waiting.append(job)
            self._tell()

    def put_back(self, jobs: Iterable[Job]) -> None:
        """Let jobs that were taken wait again, before all others, each for a run of its own."""
        with self._changed:
            for job in reversed(list(jobs)):
                job.tries += 1
                self._waiting.appendleft(job)
            self._tell()

    def take(self, patience_s: float) -> list[Job] | None:
        """Wait for jobs that run together; return none of them where none come for so long.

        Return None once the queue is closed and empty.
        """
        until = time.monotonic() + patience_s
        with self._changed:
            while True:
                self._drop_unwanted()
                if self._waiting:
                    jobs = self._ready(self._waiting[0])
                    if jobs:
                        self._tell()
                        return jobs
                elif not self._is_open:
                    return None
                elif time.monotonic() >= until:
                    return []
                else:
                    self._changed.wait(until - time.monotonic())

    def note_run(self, seconds: float) -> None:
        """Note how long a batch took."""
        self._run_s = _SMOOTH * self._run_s + (1 - _SMOOTH) * seconds if self._run_s else seconds

    def close(self) -> list[Job]:
        """Take no more; return those that wait."""
        with self._changed:
            self._is_open = False
            left, self._waiting = list(self._waiting), deque()
            self._tell()
        return left

    def _ready(self, first: Job) -> list[Job]:
        """Return what runs with the oldest job; nothing while it may wait for others."""
        alike = [first]
        rows = first.rows
        for job in list(self._waiting)[1:]:
            if first.form is None or first.tries or job.tries or job.form != first.form:
                continue
            if rows + job.rows > self._most_rows:
                break
            alike.append(job)
            rows += job.rows
        left_s = first.entered + self._delay_s - time.monotonic()
        is_full = first.form is None or first.tries or rows >= self._most_rows
        if not is_full and left_s > 0 and self._is_open:
            self._changed.wait(left_s)
            return []
        for job in alike:
            self._waiting.remove(job)
        return [job for job in alike if job.begin()]

    def _drop_unwanted(self) -> None:
        """Forget those that nobody waits for."""
        kept = [job for job in self._waiting if job.is_wanted]
        if len(kept) < len(self._waiting):
            for job in self._waiting:
                if not job.is_wanted:
                    job.done.cancel()
            self._waiting = deque(kept)
            self._tell()

    def _tell(self) -> None:
        self._on_length(len(self._waiting))
        self._changed.notify_all()
