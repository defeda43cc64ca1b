"""Engines in processes of their own that take turns: every measurement here is made so.

An engine is opened in a worker process, or is a command that prints what it found. In both a round
gives every engine one turn, in an order that favours none (`vermilion.rounds`): what slows the
machine down for longer than a round slows all of them, so a ratio is taken within a round.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import psutil

from vermilion.bench.figures import spread
from vermilion.errors import DeviceError, VermilionError
from vermilion.process.child import Child, ChildError, error_of
from vermilion.progress import Progress, no_progress
from vermilion.rounds import in_rounds

Opened = TypeVar("Opened")
Record = dict[str, Any]

WORKER = ("vermilion.bench.worker",)


class EngineProcess:
    """One worker process. Between questions it is blocked on its pipe and uses no time."""

    def __init__(
        self, label: str, folder: Path, *, timeout_s: float, worker: Sequence[str] = WORKER
    ) -> None:
        """Start it; what it prints goes to a file in `folder`."""
        self.label = label
        self._timeout_s = timeout_s
        who = f"the engine `{label}`"
        self._child = Child(worker, folder / f"{label}.stderr", who=who)

    @property
    def process(self) -> int:
        """The process id."""
        return self._child.process

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """Call a method of the worker.

        Raises: what it raised, by its kind; DeviceError where it died or took too long.
        """
        try:
            return self._child.ask(do, details, limit_s=self._timeout_s)
        except ChildError as error:
            words = f"the engine `{self.label}`: {error.message}"
            if (raised := error.raised) is not None:
                where = ", ".join(part for part in (do, raised.where) if part)
                raise error_of(type(raised), words, where=where, hint=raised.hint) from error
            raise DeviceError(words, where=error.log, hint=_HINTS[error.kind]) from error

    def close(self) -> None:
        """End the process and wait until it is gone."""
        self._child.stop()

    def __enter__(self) -> Self:
        """Return itself: it is running already."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the process."""
        self.close()


_HINTS = {
    "hung": "give it longer with `--timeout`, or leave it out of `--against`",
    "crashed": "leave the engine out of `--against`, or try the model with it alone",
}


def open_engines(
    stack: ExitStack,
    labels: Sequence[str],
    folder: Path,
    opening: Callable[[int, EngineProcess], Opened],
    *,
    timeout_s: float,
    worker: Sequence[str] = WORKER,
    progress: Progress = no_progress,
) -> list[tuple[EngineProcess, Opened] | VermilionError]:
    """Start a process for each label and open its engine there, by its number.

    An engine that cannot be opened is its error, and its process ends; the first has to.
    """
    found: list[tuple[EngineProcess, Opened] | VermilionError] = []
    for index, label in enumerate(labels):
        progress("open engines", index, len(labels))
        process = EngineProcess(label, folder, timeout_s=timeout_s, worker=worker)
        stack.enter_context(process)
        try:
            found.append((process, opening(index, process)))
        except VermilionError as error:
            process.close()
            if index == 0:
                raise
            found.append(error)
    return found


# A turn is long enough for a clock speed to settle, and has enough runs for a median.
TURN_MS = 20.0
MIN_RUNS = 3
MAX_RUNS = 200
# One run this long is a turn: beside it, cold caches and the waking of workers do not count.
LONG_RUN_MS = 250.0

WARM_UP_TURNS = 2


@dataclass(frozen=True)
class Timed:
    """The times of one engine, in milliseconds.

    `turn_ms` holds the median of each turn, so element i of two engines belongs together.
    `quiet_after_ms` is the longest that the engine went on using the processor after a turn;
    None if it never stopped, and then it disturbed the others.
    """

    run_ms: tuple[float, ...]
    turn_ms: tuple[float, ...]
    quiet_after_ms: float | None


def runs_in_a_turn(run_ms: float) -> int:
    """Return the number of runs that fill a turn."""
    if run_ms >= LONG_RUN_MS:
        return 1
    return max(MIN_RUNS, min(MAX_RUNS, math.ceil(TURN_MS / max(run_ms, 1e-6))))


def take_turns(
    engines: Sequence[EngineProcess], rounds: int, *, progress: Progress = no_progress
) -> tuple[Timed, ...]:
    """Return each engine `rounds` turns and its times, in the order of `engines`.

    Raises: DeviceError where an engine dies or hangs.
    """
    counts = {engine: _warm_up(engine) for engine in engines}

    def turn(engine: EngineProcess, _: int) -> dict[str, Any]:
        return engine.ask("turn", runs=counts[engine], settle=0 if counts[engine] == 1 else 1)

    taken = in_rounds(engines, turn, rounds, progress=progress)
    return tuple(
        Timed(
            run_ms=tuple(ms for reply in replies for ms in reply["ms"]),
            turn_ms=tuple(statistics.median(reply["ms"]) for reply in replies),
            quiet_after_ms=_longest([reply["quiet_after_ms"] for reply in replies]),
        )
        for replies in taken
    )


def _warm_up(engine: EngineProcess) -> int:
    count = 1
    for _ in range(WARM_UP_TURNS):
        reply = engine.ask("turn", runs=count, settle=1)
        count = runs_in_a_turn(statistics.median(reply["ms"]))
        if count == 1:
            break
    return count


def _longest(quiet_after_ms: Sequence[float | None]) -> float | None:
    known = [ms for ms in quiet_after_ms if ms is not None]
    return max(known) if len(known) == len(quiet_after_ms) else None


_LAST_LINES = 3


def printed_record(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Record:
    """Run a command; return the last JSON object that it prints on a line.

    Raises: DeviceError with its last words where it fails.
    """
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        words = done.stderr.strip().splitlines()[-_LAST_LINES:]
        raise DeviceError(
            words[-1] if words else f"it ended with code {done.returncode}",
            where=f"`{' '.join(command)}`",
            hint="\n".join(words[:-1]),
        )
    found: Record = json.loads(lines[-1])
    return found


def in_turns(script: str, commands: Sequence[Sequence[str]], turns: int) -> list[Record]:
    """Run a script with each command on one core, in processes that take turns.

    What is read for the first time or compiled is not measured: a round before the first is left
    out. Raises: DeviceError where a command fails.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def turn(words: Sequence[str], number: int) -> Record:
        record = printed_record([sys.executable, script, *words], environment)
        return {**record, "turn": number - 1}

    found = in_rounds(commands, turn, turns, warm_up=1)
    return [record for records in found for record in records]


def on_one_core() -> None:
    """Keep this process, and the threads that it will have, on one core, where the system can."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # macOS has none
        process.cpu_affinity(process.cpu_affinity()[-1:])


def rows(records: Sequence[Record], keys: Sequence[str], measured: Sequence[str]) -> Iterator[str]:
    """Yield a line for each combination of `keys`: medians and spread of what was measured."""
    for key in dict.fromkeys(tuple(str(one[name]) for name in keys) for one in records):
        same = [one for one in records if tuple(str(one[name]) for name in keys) == key]
        found = (spread([one[name] for one in same]) for name in measured)
        yield "".join(f"{word:<16}" for word in key) + "".join(f"{word:>24}" for word in found)


def head(keys: Sequence[str], measured: Sequence[str]) -> str:
    """Return the line above `rows`."""
    return "".join(f"{word:<16}" for word in keys) + "".join(f"{word:>24}" for word in measured)


def save_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write aside and rename: whoever is stopped here leaves no half of a file."""
    aside = file.with_name(file.name + ".part")
    aside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    aside.replace(file)
