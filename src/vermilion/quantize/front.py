"""The Pareto front of models: what each format for each node costs, and what it keeps.

The search starts at the scheme that was asked for, tries what costs nothing, and then raises
activations to 16 bits and nodes to bfloat16, at last to float, where that removes most damage at
the outputs for the least cost, three decibels at a time, until the time is over. Everything is
measured on samples that were not calibrated on; what costs more and keeps less than another is
left out of the Pareto front.

The cost is modelled: products alone, a product of two 8-bit numbers counting one.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array
from vermilion.memory import old_objects_left_alone
from vermilion.progress import Progress, no_progress
from vermilion.quantize.cost import eight_bit_share, relative_cost
from vermilion.quantize.feeds import checked, input_slots
from vermilion.quantize.formats import scheme_named
from vermilion.quantize.guard import Measurement, Promise, measurement
from vermilion.quantize.hold_out import HELD_OUT_EVERY, HELD_OUT_SAMPLES, HeldOut, hold_out
from vermilion.quantize.judge import Verdict
from vermilion.quantize.options import Options
from vermilion.quantize.quantize import decide, write
from vermilion.quantize.remedies import Integers, integer_ladder
from vermilion.quantize.result import Quantized
from vermilion.quantize.widen import widened

# Beyond it nobody could tell the difference, and what is left is bfloat16's own rounding.
_ENOUGH_DB = 60.0


@dataclass(frozen=True)
class Point:
    """One thing that was tried.

    Units: `cost` in products of 8-bit numbers, all products of the model being in 8 bits counting
    one; `drop` a part of the metric, 0 without one; `seconds` of wall clock.
    """

    what: str
    options: Options
    cost: float
    sqnr_db: float
    drop: float
    eight_bit_share: float
    seconds: float
    fault: str = ""

    @property
    def met(self) -> bool:
        """Nothing was promised."""
        return False

    @property
    def quality(self) -> tuple[float, float]:
        """Return what is better where it is larger."""
        return -self.drop, self.sqnr_db

    def as_json(self) -> dict[str, object]:
        """Return the row of a Pareto front's file: its recipe is one that `--recipe` takes."""
        row = dataclasses.asdict(self)
        row.pop("options")
        return {**row, "recipe": self.options.as_json()}


@dataclass(frozen=True)
class Front:
    """The Pareto front, cheapest first, of so many models that were `tried`."""

    points: tuple[Point, ...]
    tried: int
    held_out: int
    metric: str
    quantized: Quantized  # as the first point has it

    def as_json(self) -> dict[str, object]:
        """Return what a Pareto front's file holds."""
        return {
            "points": [{"point": n, **point.as_json()} for n, point in enumerate(self.points)],
            "tried": self.tried,
            "held_out": self.held_out,
            "metric": self.metric,
            "cost_is": "modelled: products alone, of 8 bits 1, with 16-bit activations or in "
            "bfloat16 2, in float 16",
        }


@old_objects_left_alone()
def find_front(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    options: Options,
    *,
    minutes: float = 5.0,
    promise: Promise | None = None,
    progress: Progress = no_progress,
    details: bool = False,
) -> Front:
    """Search until the time is over, or nothing is left to raise.

    `promise` names a metric, if one counts beside the SQNR; what it promises does not matter.

    Raises: as `quantize_model`; OptionError where there are too few samples to hold some out.
    """
    if not minutes > 0.0:
        raise OptionError(f"a search of {minutes:g} minutes finds nothing")
    scheme_named(options.scheme)
    begin = time.monotonic()
    model = widened(model)
    held = HeldOut()
    stream = hold_out(checked(samples, input_slots(model)), held, HELD_OUT_SAMPLES)
    ladder = integer_ladder(model, stream, held, options, progress, raises_to="bfloat")
    if not held.samples:
        raise OptionError(
            "a Pareto front needs samples to hold out",
            hint=f"give at least {HELD_OUT_EVERY}; 32 or more are usual",
        )
    measured = measurement(model, promise, held)
    search = _Search(ladder, measured, begin + 60.0 * minutes, progress)
    search.attempt("as asked", options)
    for what, change in _ends(options):
        search.attempt(what, dataclasses.replace(options, **change))  # type: ignore[arg-type]
    ladder.climb(options, search)
    points = undominated(search.points)
    if not points:
        raise OptionError(
            f"no model of the Pareto front is of use: {search.points[0].fault}",
            hint="look at the samples, or take `--scheme bf16`",
        )
    quantized = ladder.finish(points[0].options, progress, details=details)
    return Front(tuple(points), len(search.points), measured.held_out, measured.metric, quantized)


def _ends(options: Options) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield what is in one format as a whole: what the search goes on between."""
    if not scheme_named(options.scheme).power_of_two:
        yield "all activations in 16 bits", {"wide": ("*",)}
    yield "all nodes in bfloat16", {"bfloat": ("*",)}


def undominated(points: Sequence[Point]) -> list[Point]:
    """Return the points that none that costs as little beats, cheapest first."""
    found: list[Point] = []
    sound = [point for point in points if not point.fault]
    for point in sorted(sound, key=lambda p: (p.cost, *(-q for q in p.quality))):
        if not found or point.quality > found[-1].quality:
            found.append(point)
    return found


class _Search:
    """The points, as they are made."""

    def __init__(
        self, ladder: Integers, measured: Measurement, until: float, progress: Progress
    ) -> None:
        self._ladder, self._measured, self._until = ladder, measured, until
        self._progress = progress
        self.points: list[Point] = []

    @property
    def is_late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self._until

    def attempt(self, what: str, options: Options) -> Point:
        """Quantize so, and measure; what was tried before is not tried again."""
        known = next((point for point in self.points if point.options == options), None)
        if known is not None:
            return known
        begin = time.perf_counter()
        decided = decide(self._ladder.seen, options)
        graph, plan, parameters = decided.work.graph, decided.plan, decided.constants.parameters
        cost = relative_cost(graph, plan, parameters, options.bfloat)
        share = eight_bit_share(graph, plan, parameters)
        write(decided)
        verdict: Verdict = self._measured.of(decided.work)
        point = Point(
            what,
            options,
            cost,
            verdict.sqnr_db,
            verdict.drop,
            share,
            time.perf_counter() - begin,
            verdict.fault,
        )
        self.points.append(point)
        self._progress("front", len(self.points), 0)
        return point

    def is_end(self, trial: Any) -> bool:
        """Say whether the search is over."""
        return self.is_late or bool(trial.sqnr_db >= _ENOUGH_DB)

    def best(self) -> Point:
        """Return the best of the cheapest: what raising precision goes on from."""
        least = min(point.cost for point in self.points)
        cheapest = [point for point in self.points if point.cost == least]
        sound = [point for point in cheapest if not point.fault] or cheapest
        return max(sound, key=lambda point: point.quality)

    def missing_db(self) -> float | None:
        """Nothing was promised."""
        return None
