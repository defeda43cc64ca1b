"""One engine in a process of its own (`vermilion.process`): it sleeps between messages.

compile  model, precision, folder            → artifact, compile_s, file_bytes, peak_rss_mb
open     engine, precision, model, threads  → version, runs_on, placement, import_s, load_s
answer   inputs, outputs (.npz files), names → names of the outputs, first_run_ms
turn     runs, settle                        → ms, quiet_after_ms
profile  runs                                → runs: the events of each
usage                                        → peak_rss_mb, cpu_s
"""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from vermilion.bench.engines import Opened, Request, compile_ours, open_engine
from vermilion.bench.machine import wait_until_quiet
from vermilion.errors import OptionError
from vermilion.memory import peak_rss_mb

Thing = TypeVar("Thing")


@dataclass
class Worker:
    """What is open in this process."""

    request: Request | None = None
    opened: Opened | None = None
    inputs: dict[str, np.ndarray] | None = None

    def compile(self, model: str, precision: str, folder: str) -> dict[str, Any]:
        """Compile with ours."""
        artifact, seconds = compile_ours(Path(model), precision, Path(folder))
        return {
            "artifact": str(artifact),
            "compile_s": seconds,
            "file_bytes": artifact.stat().st_size,
            "peak_rss_mb": peak_rss_mb(),
        }

    def open(self, engine: str, precision: str, model: str, threads: int) -> dict[str, Any]:
        """Open the model in the engine."""
        self.request = Request(engine, precision, model, threads)
        self.opened = open_engine(self.request)
        wait_until_quiet()
        return {
            "version": self.opened.version,
            "runs_on": self.opened.runs_on,
            "placement": self.opened.placement,
            "import_s": self.opened.import_s,
            "load_s": self.opened.load_s,
        }

    def answer(self, inputs: str, outputs: str, names: Sequence[str]) -> dict[str, Any]:
        """Run once. Arrays travel by position: a name may hold what a file name must not."""
        opened = _needed(self.opened)
        with np.load(inputs, allow_pickle=False) as stored:
            arrays = [stored[f"arr_{index}"] for index in range(len(names))]
        self.inputs = dict(zip(names, arrays, strict=True))
        begin = time.perf_counter()
        found = opened.run(self.inputs)
        first_run_ms = (time.perf_counter() - begin) * 1e3
        np.savez(outputs, *[np.array(array) for array in found])
        wait_until_quiet()
        return {"names": list(opened.output_names), "first_run_ms": first_run_ms}

    def turn(self, runs: int, settle: int) -> dict[str, Any]:
        """Run in a burst; the first `settle` runs fill caches and wake workers, untimed."""
        opened, inputs = _needed(self.opened), _needed(self.inputs)
        gc.collect()
        gc.disable()
        for _ in range(settle):
            opened.run(inputs)
        taken = []
        for _ in range(runs):
            begin = time.perf_counter_ns()
            opened.run(inputs)
            taken.append((time.perf_counter_ns() - begin) / 1e6)
        gc.enable()
        return {"ms": taken, "quiet_after_ms": wait_until_quiet()}

    def profile(self, runs: int) -> dict[str, Any]:
        """Open the engine once more, so that it tells of its steps, and run it."""
        from vermilion.bench.events import profile_engine

        request, inputs = _needed(self.request), _needed(self.inputs)
        told = profile_engine(request, inputs, runs)
        return {"runs": [[asdict(event) for event in run] for run in told]}

    def usage(self) -> dict[str, Any]:
        """Return what the process has used so far."""
        return {"peak_rss_mb": peak_rss_mb(), "cpu_s": time.process_time()}


def _needed(thing: Thing | None) -> Thing:
    if thing is None:
        raise OptionError("a worker has to `open` and `answer` before this")
    return thing
