"""How long each step of a program takes: its rows run one by one, by the same workers.

Steps that a program lets overlap wait for each other here, so their sum is a little more than the
time of a whole run. What is measured is what a user may compare: which step takes how much of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.load import LoadedProgram
from vermilion.codegen.table import ROW_WORDS, WAIT, Call
from vermilion.codegen.workers import ThreadPool

# Empty steps that are timed to learn what calling costs; the median of these.
_EMPTY_RUNS = 64


@dataclass(frozen=True)
class StepTime:
    """One step of one run. `label` is the last ONNX node that it computes.

    Units: `begin_ns` on the clock of `time.perf_counter_ns`.
    """

    label: str
    family: str
    operations: int
    begin_ns: int
    duration_ns: int


class StepTimer:
    """Runs a step table row by row and keeps the times of the last run."""

    def __init__(self, program: LoadedProgram, calls: Sequence[Call], workers: int) -> None:
        """Take a program's table apart; `calls` say what its rows are.

        The workers wait inside the program's functions, and keep what those lie in.
        """
        self._rows = program.rows.reshape(-1, ROW_WORDS).copy()
        self._rows[:, 4] = 0  # everything before a step is finished when it begins
        self._calls = calls
        self._pool = ThreadPool(
            program.functions, np.zeros(ROW_WORDS, np.int64), workers, program.keep
        )
        self._times: list[tuple[int, int]] = []
        self._calling_ns = self._calling(program.functions[WAIT])

    def run(self) -> None:
        """Run all rows once, in order."""
        self._times = [self._timed(row) for row in self._rows]

    @property
    def times(self) -> tuple[StepTime, ...]:
        """The steps of the last run. What it takes to call an empty step is taken off."""
        return tuple(
            StepTime(
                call.label,
                call.function.rpartition("_")[0],
                call.operations,
                begin,
                max(0, duration - self._calling_ns),
            )
            for call, (begin, duration) in zip(self._calls, self._times, strict=True)
        )

    def close(self) -> None:
        """End the workers."""
        self._pool.close()

    def _timed(self, row: NDArray[np.int64]) -> tuple[int, int]:
        self._pool.hold(row)
        run: Callable[[], None] = self._pool.run
        begin = time.perf_counter_ns()
        run()
        return begin, time.perf_counter_ns() - begin

    def _calling(self, wait: int) -> int:
        """Time a step that does nothing: the workers' own waiting, for what is there already."""
        word = np.zeros(1, np.int64)
        empty = np.array((wait, word.ctypes.data, 1, 1, 0), np.int64)
        return int(np.median([self._timed(empty)[1] for _ in range(_EMPTY_RUNS)]))
