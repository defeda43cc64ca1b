"""Engines taking turns: short bursts, one engine at a time, in an order that favours none.

A round gives every engine one turn. What slows the machine down for longer than a round slows all
of them, so a ratio is taken within a round; and each round begins with another engine, so that
nobody always runs after the same one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vermilion.bench.process import EngineProcess
from vermilion.progress import Progress, no_progress
from vermilion.rounds import in_rounds

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
