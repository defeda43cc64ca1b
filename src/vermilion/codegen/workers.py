"""Threads that wait for work inside native code, and the running of a step table by all of them.

A worker spins for a moment after each run, so that the next one starts within a microsecond, then
sleeps: nothing burns a core while nobody calls. Who calls waits for no worker, only for what a
worker has begun. The threads are Python's; ctypes lets go of the interpreter lock while they are
in native code, where they stay from one run to the next: a worker that asked for that lock would
keep the caller from beginning (0.04 ms of each 1.6, a token of SmolLM2 on two cores).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.layout import CLOSING, ROW_WORDS, RUN, SERVE, context_bytes

# Spins before a worker sleeps: about a millisecond. Long enough for what a caller does between two
# runs; a worker that slept may come too late for a short run (on a virtual machine it is woken on
# the caller's own core: MobileNetV2 took 2.9 ms instead of 1.6 with a tenth of this).
_SPINS = 50_000
# Runs that are told apart by their tags; after them the workers start anew.
_TAGS = 2**31 - 1


def aligned_bytes(size: int, alignment: int = 64) -> NDArray[np.uint8]:
    """Give a zeroed buffer whose first byte is aligned."""
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


@dataclass(frozen=True)
class Memory:
    """Where a program's buffers come from: tests lay them beside pages that nobody may touch.

    `aligned` takes a size in bytes; `empty` a shape and a data type, and what it holds is open.
    """

    aligned: Callable[[int], NDArray[np.uint8]] = aligned_bytes
    empty: Callable[[Sequence[int], np.dtype[Any]], NDArray[Any]] = np.empty


HEAP = Memory()


def usable_cores() -> int:
    """Give the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# None where the system cannot tell or place threads (Windows, macOS).
_current_core = (
    getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None
)


class Crew:
    """The caller and `workers - 1` threads, running one step table at a time."""

    def __init__(
        self, functions: Mapping[str, int], table: NDArray[np.int64], workers: int
    ) -> None:
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 5)(
            functions[RUN]
        )
        self._serve = ctypes.CFUNCTYPE(
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 5
        )(functions[SERVE])
        self._table = table
        self._steps = len(table) // ROW_WORDS
        self._units = int(table[2::ROW_WORDS].sum())
        self.workers = max(1, workers)
        self._context = aligned_bytes(context_bytes(self._steps, self.workers)).view(np.int64)
        # Asking an array for its address takes a microsecond.
        self._context_at, self._table_at = self._context.ctypes.data, table.ctypes.data
        self._awake = threading.Condition()
        self._sleeping = 0
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()
        self._cores: set[int] = set()  # where the threads may run; empty: anywhere

    def run(self) -> None:
        """Run the table once. The caller makes sure that nobody else does at the same time."""
        if self.workers == 1 or self._closing:
            self._run(self._context_at, self._table_at, self._steps, 0, 0, 0, 1)
            return
        if int(self._context[0]) >= _TAGS:
            self._forget()
        self._start()
        generation = int(self._context[0]) + 1
        tag = generation << 32
        self._context[0] = generation  # whoever spins sees it at once
        if self._sleeping:
            self._make_room()
            with self._awake:
                self._awake.notify_all()
        self._run(self._context_at, self._table_at, self._steps, tag, self._units, 0, self.workers)

    def hold(self, row: NDArray[np.int64]) -> None:
        """Make one row the whole table of a crew that was made for one, between two runs.

        A worker that is late from the run before must find the next run's counter before it finds
        the new row: it would hold the old count against the new units, and compute what it reads
        of both rows.
        """
        if int(self._context[0]) >= _TAGS:
            self._forget()
        first = context_bytes(0, self.workers) // 8
        self._context[first::8] = (int(self._context[0]) + 1) << 32
        self._table[:] = row
        self._units = int(row[2])

    def _make_room(self) -> None:
        """Keep those who are woken off the caller's core, where Linux may put them to wait for it.

        MobileNetV2 after a pause: 2.8 ms without this, 1.6 with it.
        """
        if _current_core is None:
            return
        others = os.sched_getaffinity(0) - {_current_core()}
        if others and others != self._cores:
            for thread in self._threads:
                if thread.native_id is not None:
                    os.sched_setaffinity(thread.native_id, others)
            self._cores = others

    def close(self) -> None:
        """End the threads."""
        self._closing = True
        with self._awake:
            self._context[CLOSING // 8] = 1
            self._context[0] += 1
            self._awake.notify_all()
        for thread in self._threads:
            thread.join(timeout=1.0)
        self._threads = []

    def _forget(self) -> None:
        """End the threads, so that none can take an old tag for a new one, and begin to count."""
        self.close()
        self._closing = False
        self._context[:] = 0

    def _start(self) -> None:
        """Start the threads at the first run, and again in a process that was forked since."""
        if self._threads and self._process == os.getpid():
            return
        self._process = os.getpid()
        self._awake = threading.Condition()
        self._sleeping = 0
        self._cores = set()
        # What ran before the fork is no work for the new threads.
        crew, seen = weakref.ref(self), int(self._context[0])
        self._threads = [
            threading.Thread(
                target=_work, args=(crew, seen, index), daemon=True, name=f"vermilion-{index}"
            )
            for index in range(1, self.workers)
        ]
        for thread in self._threads:
            thread.start()


def _work(crew_of: weakref.ref[Crew], seen: int, worker: int) -> None:
    """Wait for runs after `seen` and take part in them until the crew closes or is gone."""
    crew = crew_of()
    if crew is None:
        return
    context, table, steps = crew._context_at, crew._table_at, crew._steps
    while not crew._closing:
        seen = crew._serve(context, table, steps, seen, _SPINS, worker, crew.workers)
        awake = crew._awake
        with awake:
            crew._sleeping += 1
            if int(crew._context[0]) == seen and not crew._closing:
                awake.wait(timeout=1.0)
            crew._sleeping -= 1
