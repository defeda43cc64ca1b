"""Keeping a promise on accuracy: what is tried, in which order, and what each step cost.

The cheapest remedies come first: other ranges, a scale for each channel, more careful rounding,
and for each activation the range that does least at the outputs. Then precision is raised where it
removes most damage for the fewest operations that leave 8 bits: activations to 16 bits, at last
single nodes to float. Every step is measured on samples that were not calibrated on. A largest drop
counts as kept where they show it with 95 % confidence.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.ir.measure import sqnr_from_sums
from vermilion.progress import Progress, no_progress
from vermilion.quantize.cost import eight_bit_share
from vermilion.quantize.evidence import samples_needed, upper_bound
from vermilion.quantize.formats import scheme_named
from vermilion.quantize.hold_out import (
    HELD_OUT_BYTES,
    HELD_OUT_EVERY,
    HELD_OUT_SAMPLES,
    Metric,
    Outputs,
    disagreement,
    hold_out,
    lost_by_each,
    most_for,
    samples_for,
)
from vermilion.quantize.old_objects import old_objects_left_alone
from vermilion.quantize.options import Options
from vermilion.quantize.own_ranges import own_ranges
from vermilion.quantize.quantize import Seen, decide, finish, look, write
from vermilion.quantize.result import Quantized
from vermilion.quantize.scales import own_method
from vermilion.quantize.sensitivity import Damage, measure_damage, widened_for

_DAMAGE_SAMPLES = 8
_STEP = 2.0  # 3 dB: noise that a trial leaves, relative to the one before
_MOST_RUNGS = 8
_HALVINGS = 3

# Noise a thousandth of the signal turns few real decisions.
_CLEAR_DB = 30.0
_CLEAR_DROP = 0.1


@dataclass(frozen=True)
class Promise:
    """What must hold on held-out samples; one of both.

    Units: `max_drop` is a part of the metric that the float model reaches; without a metric, of
    the decisions (largest of the classes, or above one half) that agree with the float model's.
    It has to be shown with 95 % confidence: of one yes or no a sample, 3 ÷ `max_drop` samples that
    lose nothing show it. `min_sqnr_db` holds for every output, as measured.
    """

    max_drop: float | None = None
    min_sqnr_db: float | None = None
    metric: Metric | None = None

    def __post_init__(self) -> None:
        if (self.max_drop is None) == (self.min_sqnr_db is None):
            raise OptionError("an accuracy promise is either a largest drop or a smallest SQNR")
        if self.max_drop is not None and not 0.0 <= self.max_drop < 1.0:
            raise OptionError(
                f"a largest drop of {self.max_drop:.0%} makes no sense", hint="write `1%`"
            )


@dataclass(frozen=True)
class Trial:
    """One thing that was tried.

    Units: `drop` as in `Promise`, and `bound` what it does not exceed with 95 % confidence;
    `seconds` of wall clock; `eight_bit_share` of all operations. `samples_needed` is how many
    samples in all, losing alike, would show that the drop is as small as promised; 0 where none
    would.
    """

    what: str
    options: Options
    sqnr_db: float
    drop: float
    eight_bit_share: float
    seconds: float
    met: bool
    bound: float = 0.0
    samples_needed: int = 0

    def as_json(self) -> dict[str, object]:
        """Return the row of the ladder."""
        row = dataclasses.asdict(self)
        row["options"] = self.options.as_json()
        return row


@dataclass(frozen=True)
class Guarded:
    """The cheapest result that keeps the promise; where none does, the best one.

    `held_out` samples were not calibrated on.
    """

    quantized: Quantized
    ladder: tuple[Trial, ...]
    met: bool
    damage: tuple[Damage, ...] = ()
    held_out: int = 0
    promise: Promise | None = None

    @property
    def has_doubtful_metric(self) -> bool:
        """Say whether what was counted by default falls far more than the outputs change.

        That is so where an output holds no scores to choose from, but boxes, for example.
        """
        if self.promise is None or self.promise.max_drop is None or self.promise.metric:
            return False
        return any(r.sqnr_db >= _CLEAR_DB and r.drop >= _CLEAR_DROP for r in self.ladder)


@old_objects_left_alone()
def quantize_guarded(
    model: ir.Model,
    samples: Iterable[Mapping[str, Array]],
    promise: Promise,
    options: Options,
    progress: Progress = no_progress,
    *,
    details: bool = False,
) -> Guarded:
    """Quantize so that the promise holds on samples that were held out of calibration.

    Raises: as `quantize_model`; OptionError where there are too few samples to hold some out.
    """
    held_out: list[dict[str, Array]] = []
    looked = dataclasses.replace(options, rounding="compensated")
    most = HELD_OUT_SAMPLES if promise.max_drop is None else most_for(promise.max_drop)
    seen = look(model, hold_out(samples, held_out, most), looked, progress, histograms=True)
    if not held_out:
        raise OptionError(
            "an accuracy promise needs samples to hold out",
            hint=f"give at least {HELD_OUT_EVERY}; 32 or more are usual",
        )
    search = _AccuracySearch(model, seen, promise, held_out, progress)
    search.go(options)
    best = search.best()
    quantized = finish(model, seen, best.options, progress, details=details)
    return Guarded(
        quantized, tuple(search.ladder), best.met, tuple(search.damage), search.held_out, promise
    )


class _AccuracySearch:
    """The ladder as it grows."""

    def __init__(
        self,
        model: ir.Model,
        seen: Seen,
        promise: Promise,
        held_out: Sequence[Mapping[str, Array]],
        progress: Progress,
    ) -> None:
        self._seen, self._promise, self._held_out = seen, promise, held_out
        self._progress = progress
        self._reference = self._run(model)
        self._held_out = held_out[: len(self._reference)]
        self._samples = self._held_out[:_DAMAGE_SAMPLES]
        self._float_metric = None if promise.metric is None else promise.metric(self._reference)
        self._unit = 1.0  # the least that a sample was seen to lose
        self._lost = True
        self.ladder: list[Trial] = []
        self.damage: list[Damage] = []
        self._nodes: set[str] = set()

    @property
    def held_out(self) -> int:
        """How many samples the ladder was measured on."""
        return len(self._reference)

    def best(self) -> Trial:
        """Return the cheapest trial that keeps the promise, or where none does, the best."""
        kept = [trial for trial in self.ladder if trial.met]
        if kept:
            return max(kept, key=lambda trial: (trial.eight_bit_share, trial.sqnr_db))
        if self._promise.max_drop is None:
            return max(self.ladder, key=lambda trial: trial.sqnr_db)
        return max(self.ladder, key=lambda trial: (-trial.bound, trial.sqnr_db))

    def go(self, options: Options) -> None:
        """Search until the promise is kept, or nothing is lost and more samples would be needed."""
        if self._is_end(self._try("as asked", options)):
            return
        for what, change in _cheap_changes(options):
            trial = self._try(what, dataclasses.replace(options, **change))  # type: ignore[arg-type]
            if self._is_end(trial):
                return
        options = self.best().options
        decided = decide(self._seen, options)
        self._nodes = {str(node.name) for node in decided.plan.nodes}
        self.damage = measure_damage(
            decided.work, decided.plan, decided.constants, self._samples, self._progress
        )
        if not scheme_named(options.scheme).power_of_two:
            options = self._with_own_ranges(options)
        if not self._is_end(self.ladder[-1]):
            self._raise(options)

    def _with_own_ranges(self, options: Options) -> Options:
        """Try the range that does least at the outputs for each activation; keep what helps."""
        ranges, damage = own_ranges(self._seen, options, self.damage, self._samples, self._progress)
        if not ranges:
            return options
        own = dataclasses.replace(options, ranges={**ranges, **options.ranges})
        trial = self._try(f"own ranges for {len(ranges)} activations", own)
        if self.best() is not trial:
            return options
        self.damage = damage
        return own

    def _is_end(self, trial: Trial) -> bool:
        """Say whether no other trial could show more: this one is good, or lost nothing at all."""
        lost_nothing = self._promise.max_drop is not None and not self._lost
        return trial.met or lost_nothing

    def _try(self, what: str, options: Options) -> Trial:
        begin = time.perf_counter()
        decided = decide(self._seen, options)
        share = eight_bit_share(decided.plan, decided.constants.parameters)
        write(decided)
        found = self._run(decided.work)
        sqnr_db = self._sqnr_db(found)
        losses = self._losses(found)
        drop, mean = self._drop(found, losses), float(np.mean(losses))
        # Where samples do not simply add up, their spread still is that of the metric.
        bound = drop - mean + upper_bound(losses, self._unit)
        self._lost = any(losses)
        promise, needed = self._promise, 0
        if promise.max_drop is None:
            met = sqnr_db >= (promise.min_sqnr_db or 0.0)
        else:
            met = bound <= promise.max_drop
            needed = samples_needed(losses, self._unit, promise.max_drop - drop + mean)
        seconds = time.perf_counter() - begin
        total = samples_for(needed) if needed else 0
        trial = Trial(what, options, sqnr_db, drop, share, seconds, met, bound, total)
        self.ladder.append(trial)
        self._progress("ladder", len(self.ladder), 0)
        return trial

    def _raise(self, options: Options) -> None:
        """Raise precision step by step, each leaving about half of the noise before."""
        total = sum(row.noise for row in self.damage)
        if total <= 0.0:
            return
        aim = total / _STEP
        if self._promise.min_sqnr_db is not None:
            # Straight to the noise that the promise leaves room for.
            missing_db = self._promise.min_sqnr_db - self.best().sqnr_db
            aim = min(aim, total / 10.0 ** (missing_db / 10.0))
        missed = total  # the noise that was left where the promise was not kept
        for _ in range(_MOST_RUNGS):
            trial = self._try_widened(options, aim)
            if trial is not None and self._is_end(trial):
                break
            missed, aim = aim, aim / _STEP
        else:
            return
        # The step was too large where less would have done. Of a drop, which few samples show, a
        # second look at the same samples would find a lucky trial sooner than a cheaper one.
        for _ in range(_HALVINGS if self._promise.max_drop is None else 0):
            between = math.sqrt(missed * aim)
            trial = self._try_widened(options, between)
            enough = trial is not None and trial.met
            missed, aim = (missed, between) if enough else (between, aim)

    def _try_widened(self, options: Options, aim: float) -> Trial | None:
        """Try what leaves no more noise than `aim`; None where that is nothing, or all in float."""
        wide_possible = not scheme_named(options.scheme).power_of_two
        wide, exclude = widened_for(self.damage, aim, wide_possible)
        if not (wide or exclude) or self._nodes.issubset(exclude):
            return None
        words = [f"{len(wide)} activations in 16 bits"] if wide else []
        words += [f"{len(exclude)} nodes in float"] if exclude else []
        raised = dataclasses.replace(
            options, wide=(*options.wide, *wide), exclude=(*options.exclude, *exclude)
        )
        known = next((trial for trial in self.ladder if trial.options == raised), None)
        return known or self._try(", ".join(words), raised)

    def _run(self, model: ir.Model) -> list[dict[str, Array]]:
        session = open_session(model, quiet=True)
        found: list[dict[str, Array]] = []
        size = 0
        for sample in self._held_out:
            if size > HELD_OUT_BYTES and len(found) >= HELD_OUT_SAMPLES:
                break
            # Copied: an array of ONNX Runtime's keeps all memory of the session alive.
            found.append({n: array.copy() for n, array in run_session(session, sample).items()})
            size += sum(array.nbytes for array in found[-1].values())
        return found

    def _sqnr_db(self, found: Outputs) -> float:
        worst = [200.0]
        for name, first in self._reference[0].items():
            if first.dtype.kind != "f":
                continue
            signal = noise = 0.0
            for exact, other in zip(self._reference, found, strict=True):
                a, b = exact[name].astype(np.float64), other[name].astype(np.float64)
                signal += float(np.sum(a**2))
                noise += float(np.sum((a - b) ** 2))
            worst.append(sqnr_from_sums(signal, noise))
        return min(worst)

    def _drop(self, found: Outputs, losses: Sequence[float]) -> float:
        metric = self._promise.metric
        if metric is None or self._float_metric is None:
            return float(np.mean(losses))
        return (self._float_metric - metric(found)) / (abs(self._float_metric) or 1.0)

    def _losses(self, found: Outputs) -> list[float]:
        """Return what each sample lost, in parts of what the float model reaches."""
        metric, reached = self._promise.metric, self._float_metric
        if metric is None or reached is None:
            shares = [disagreement(a, b) for a, b in zip(self._reference, found, strict=True)]
            self._unit = min(self._unit, min(unit for _, unit in shares))
            return [share for share, _ in shares]
        part = len(found) / (abs(reached) or 1.0)
        losses = [part * x for x in lost_by_each(metric, self._reference, found, reached)]
        self._unit = min([self._unit, *(loss for loss in losses if loss > 0.0)])
        return losses


def _cheap_changes(options: Options) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield remedies that cost nothing at run time, alone and then together."""
    scheme = scheme_named(options.scheme)
    base: dict[str, object] = {}
    if options.rounding != "compensated":
        base["rounding"] = "compensated"
        yield "compensated rounding", dict(base)
    if scheme.power_of_two:
        return
    per_channel = scheme.per_channel if options.per_channel is None else options.per_channel
    if not per_channel:
        base["per_channel"] = True
        yield "a scale for each channel", dict(base)
    for method in ("mse", "percentile", "minmax"):
        if (options.method or own_method(scheme)) != method:
            yield f"ranges by {method}", {**base, "method": method}
