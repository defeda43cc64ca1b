"""Threads that wait for work inside native code, and the running of a step table by all of them.

A worker spins for a moment after each run, so that the next one starts within a microsecond, then
sleeps: nothing burns a core while nobody calls. Who calls waits for no worker, only for what a
worker has begun. The threads are Python's; ctypes lets go of the interpreter lock while they are
in native code, where they stay from one run to the next: a worker that asked for that lock would
keep the caller from beginning (0.04 ms of each 1.6, a token of SmolLM2 on two cores).

A run is announced, computed and waited for inside one native call. An exception (Ctrl-C, a handler
of a signal) is raised between two lines of Python, so it comes before a run or after it, and no
worker touches the caller's arrays when `run` is left. Results never depend on a worker being there.
"""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.crowding import Crowding
from vermilion.codegen.table import CLOSING, ROW_WORDS, RUN, SERVE, context_bytes
from vermilion.forks import renew_after_fork

# Spins before a worker sleeps: about a millisecond. Long enough for what a caller does between two
# runs; a worker that slept may come too late for a short run (on a virtual machine it is woken on
# the caller's own core: MobileNetV2 took 2.9 ms instead of 1.6 with a tenth of this).
_SPINS = 50_000
# Runs that are told apart by their tags; after them the workers start anew.
_TAGS = 2**31 - 1
# How long a worker sleeps at most, and how long closing waits for one.
_NAP_S = 1.0
_log = logging.getLogger(__name__)


def aligned_bytes(size: int, alignment: int = 64) -> NDArray[np.uint8]:
    """Return a zeroed buffer whose first byte is aligned."""
    raw = np.zeros(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size]


# numpy asks Linux for pages of 2 MB from this size on. A page takes as long to get as a small one
# (3 microseconds on a virtual machine), and 512 small ones are a request that stalls.
_LEAST_GROWN_BYTES = 4 * 1024 * 1024
_ROOM_TO_GROW = 4


def growing_bytes(size: int) -> NDArray[np.uint8]:
    """Return a buffer for `size` bytes now and, most often, for what is needed later.

    Memory that nobody touches takes up none. A larger run then touches only what is new to it.
    """
    return aligned_bytes(max(_ROOM_TO_GROW * size, _LEAST_GROWN_BYTES))


@dataclass(frozen=True)
class Memory:
    """Where a program's buffers come from: tests lay them beside pages that nobody may touch.

    `aligned` takes a size in bytes; `empty` a shape and a data type, and what it holds is open.
    `growing` is like `aligned`, for what is larger in other runs.
    """

    aligned: Callable[[int], NDArray[np.uint8]] = aligned_bytes
    empty: Callable[[Sequence[int], np.dtype[Any]], NDArray[Any]] = np.empty
    growing: Callable[[int], NDArray[np.uint8]] = growing_bytes


HEAP = Memory()


# None where the system cannot tell or place threads (Windows, macOS).
_current_core = (
    getattr(ctypes.CDLL(None), "sched_getcpu", None) if sys.platform == "linux" else None
)


class _Team:
    """Threads of a pool, and all that they use: it lives until the last of them has left.

    They sleep at a gate each, a plain lock, that who wakes them opens. Taking and opening one is a
    single native call, and so is starting a thread: an exception cannot come between, and leave
    something held. (A `threading.Thread` is started in Python, and its locks are not safe so.)
    """

    def __init__(
        self, serve: Callable[..., int], table: NDArray[np.int64], workers: int, keep: object
    ) -> None:
        self.serve, self.table, self.workers, self._keep = serve, table, workers, keep
        self.steps = len(table) // ROW_WORDS
        self.context = aligned_bytes(context_bytes(self.steps, workers)).view(np.int64)
        # Asking an array for its address takes a microsecond.
        self.context_at, self.table_at = self.context.ctypes.data, table.ctypes.data
        self.is_started = self.is_closing = False
        self.gates = [threading.Lock() for _ in range(workers)]
        for gate in self.gates:
            gate.acquire()
        self.asleep: set[int] = set()
        self.at_work = [threading.Lock() for _ in range(workers)]  # each held by its worker
        self.places: dict[int, int] = {}  # each worker's thread, by the system's number
        self.cores: set[int] = set()  # where the threads may run; empty: anywhere

    def start(self) -> None:
        """Start who is missing: an exception may have cut off an earlier start."""
        seen = int(self.context[0])
        for worker in range(1, self.workers):
            if worker not in self.places:
                try:
                    _thread.start_new_thread(_work, (self, seen, worker))
                except RuntimeError as error:  # no more threads here, or the interpreter ends
                    _log.info("a worker cannot be started: %s", error)
        self.is_started = True

    def wake(self) -> None:
        """Open the gates of those who sleep; they look for a run, and sleep again without one."""
        for worker in list(self.asleep):
            with contextlib.suppress(RuntimeError):  # it is open already
                self.gates[worker].release()

    def close(self, *, wait: bool) -> None:
        """Let the threads leave; with `wait`, until they have, for a while."""
        self.is_closing = True
        self.context[CLOSING // 8] = 1
        self.context[0] += 1
        self.wake()
        for lock in self.at_work if wait else ():
            if lock.acquire(timeout=_NAP_S):
                lock.release()


class ThreadPool:
    """The caller and `workers - 1` threads, running one step table at a time."""

    def __init__(
        self,
        functions: Mapping[str, int],
        table: NDArray[np.int64],
        workers: int,
        keep: object = None,
    ) -> None:
        """Take a table; `keep` is what its functions and addresses lie in.

        It is held for as long as a worker may run, which may be longer than the pool is there.
        """
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 5)(
            functions[RUN]
        )
        self._serve = ctypes.CFUNCTYPE(
            ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 5
        )(functions[SERVE])
        self._table, self._keep = table, keep
        self._units = int(table[2::ROW_WORDS].sum())
        self.workers = max(1, workers)
        self._crowding = Crowding()
        self._team = self._new_team()
        renew_after_fork(self)

    def run(self) -> None:
        """Run the table once. The caller makes sure that nobody else does at the same time."""
        team, crowding = self._team, self._crowding
        if self.workers == 1 or team.is_closing:
            self._run_alone(team)
            return
        begin = crowding.clock()
        if crowding.is_alone:
            self._run_alone(team)
        else:
            self._run_together(team)
        crowding.note(begin, self._units)

    def _run_alone(self, team: _Team) -> None:
        self._run(team.context_at, team.table_at, team.steps, 0, 0, 0, 1)

    def _run_together(self, team: _Team) -> None:
        if int(team.context[0]) >= _TAGS:
            team = self._forget()
        if not team.is_started:
            team.start()
        tag = (int(team.context[0]) + 1) << 32
        if team.asleep:
            # Whoever is woken before the run is announced spins until it is.
            self._make_room()
            team.wake()
        self._run(team.context_at, team.table_at, team.steps, tag, self._units, 0, self.workers)

    def hold(self, table: NDArray[np.int64]) -> None:
        """Take another table of as many rows, between two runs.

        A worker that is late from the run before must find the next run's counters before it finds
        the new rows: it would hold the old counts against the new units, and compute what it reads
        of both tables.
        """
        if int(self._team.context[0]) >= _TAGS:
            self._forget()
        context, first = self._team.context, context_bytes(0, self.workers) // 8
        context[first::8] = (int(context[0]) + 1) << 32
        self._table[:] = table
        self._units = int(table[2::ROW_WORDS].sum())

    def close(self) -> None:
        """End the threads. A run that is under way in another thread ends as it should."""
        self._team.close(wait=True)

    def after_fork(self) -> None:
        """Begin anew in a forked process: its threads are elsewhere."""
        closed = self._team.is_closing
        self._team = self._new_team()
        self._team.is_closing = closed

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        team = getattr(self, "_team", None)
        # When the interpreter ends, modules may be gone already, and threads end with it.
        if team is not None and not is_ending():
            team.close(wait=False)  # may be called anywhere, by a worker even

    def _new_team(self) -> _Team:
        return _Team(self._serve, self._table, self.workers, self._keep)

    def _forget(self) -> _Team:
        """Change the threads, so that none can take an old tag for a new one; count anew."""
        self._team.close(wait=True)
        self._team = self._new_team()
        return self._team

    def _make_room(self) -> None:
        """Keep those who are woken off the caller's core, where Linux may put them to wait for it.

        MobileNetV2 after a pause: 2.8 ms without this, 1.6 with it.
        """
        if _current_core is None:
            return
        team = self._team
        others = os.sched_getaffinity(0) - {_current_core()}
        if others and others != team.cores:
            for thread in list(team.places.values()):
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    os.sched_setaffinity(thread, others)
            team.cores = others


def _work(team: _Team, seen: int, worker: int) -> None:
    """Wait for runs after `seen` and take part in them until the team closes."""
    me = threading.get_native_id()
    if team.places.setdefault(worker, me) != me:
        return  # its start was cut off, and another one was started for it
    with team.at_work[worker]:
        while not team.is_closing:
            seen = team.serve(
                team.context_at, team.table_at, team.steps, seen, _SPINS, worker, team.workers
            )
            team.asleep.add(worker)
            if int(team.context[0]) == seen and not team.is_closing:
                team.gates[worker].acquire(timeout=_NAP_S)
            team.asleep.discard(worker)
