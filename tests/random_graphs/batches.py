"""Many graphs in child processes: a fault that kills a child costs the batch one graph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from random_graphs.trial import Outcome

# Graphs a child: importing everything takes it some seconds.
_BATCH = 100
# A graph takes half a second; ten times the worst that was seen on a loaded machine.
SECONDS_A_GRAPH = 120.0
_TESTS = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Case:
    """A graph to try."""

    seed: int
    number_format: str

    @property
    def line(self) -> str:
        """The line of Python that tries it again, from the folder `tests`."""
        return (
            "from random_graphs.trial import repeat; "
            f'print(repeat({self.seed}, "{self.number_format}"))'
        )


@dataclass
class Tried:
    """A graph that was tried, and which operators it had."""

    case: Case
    outcome: Outcome
    grown: Sequence[str] = field(default_factory=tuple)


def environment() -> dict[str, str]:
    """Return the surroundings of a child: the same packages, no threads but its own."""
    path = [str(_TESTS), *[entry for entry in sys.path if entry]]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


def try_all(
    cases: Sequence[Case], jobs: int, until: float | None = None, anyhow: int = 0,
    told: Callable[[Tried], None] = lambda tried: None,
) -> list[Tried]:  # fmt: skip
    """Try every graph, `jobs` at a time.

    After `until` (of `time.monotonic`) none is begun, once each child has tried its share of
    `anyhow`.
    """
    count = max(min(jobs, len(cases)), -(-len(cases) // _BATCH))
    batches = [cases[at::count] for at in range(count)]
    share = -(-anyhow // max(1, count))
    found: list[Tried] = []

    def work(batch: Sequence[Case]) -> None:
        for tried in _try_batch(batch, until, share):
            found.append(tried)
            told(tried)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(work, batches))
    return found


def _try_batch(batch: Sequence[Case], until: float | None, least: int) -> Iterator[Tried]:
    left = list(batch)

    def is_late() -> bool:
        is_enough = len(batch) - len(left) >= least
        return is_enough and until is not None and time.monotonic() > until

    while left and not is_late():
        begun = len(left)
        for tried in _one_child(tuple(left), is_late):
            left.remove(tried.case)
            yield tried
        if len(left) == begun and not is_late():
            raise AssertionError("a child did nothing: run it by hand to see why")


def _one_child(cases: Sequence[Case], is_late: Callable[[], bool]) -> Iterator[Tried]:
    """Run one child over the cases, as far as it comes; the one that ends it is its last."""
    with TemporaryDirectory(prefix="random-graphs-") as name:
        plan, results, errors = (Path(name) / part for part in ("plan", "results", "errors"))
        rows = [{"seed": c.seed, "format": c.number_format} for c in cases]
        plan.write_text(json.dumps(rows), encoding="utf-8")
        results.touch()
        command = [sys.executable, "-m", "random_graphs.child", str(plan), str(results)]
        with errors.open("wb") as file, results.open(encoding="utf-8") as lines:
            child = subprocess.Popen(command, env=environment(), stdout=file, stderr=file, cwd=name)
            at: dict[str, Any] = {}
            since, rest = time.monotonic(), ""
            while True:
                is_over = child.poll() is not None
                text = rest + lines.read()
                *whole, rest = text.split("\n")
                for line in whole:
                    since, at = time.monotonic(), json.loads(line)
                    if "outcome" in at:
                        yield _tried(at)
                        at = {}
                if is_over:
                    break
                late = is_late()
                if late or time.monotonic() - since > SECONDS_A_GRAPH:
                    child.kill()
                    child.wait()
                    if not late and at:
                        yield Tried(_case(at), Outcome("hung", f"at: {at['at']}"))
                    return
                time.sleep(0.02)
            if child.returncode and at:
                yield Tried(_case(at), _ended(child.returncode, at, errors))


def _case(row: dict[str, Any]) -> Case:
    return Case(int(row["seed"]), str(row["format"]))


def _tried(row: dict[str, Any]) -> Tried:
    return Tried(_case(row), Outcome(**row["outcome"]), tuple(row["grown"]))


def _ended(code: int, at: dict[str, Any], errors: Path) -> Outcome:
    """Say how a child ended while it was at a graph."""
    stage = str(at["at"])
    if code < 0:
        name = signal.Signals(-code).name
        is_guard = stage.startswith("run, guarded") and name in ("SIGSEGV", "SIGBUS")
        return Outcome("guard fault" if is_guard else "crashed", f"{name} at: {stage}")
    last = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    return Outcome("crashed", f"exit code {code} at: {stage}; {' '.join(last)[:300]}")
