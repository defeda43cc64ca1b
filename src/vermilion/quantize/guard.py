"""Keeping a promise on accuracy: what is tried, in which order, and what each step cost.

The cheapest remedies come first: other ranges, a scale for each channel, more careful rounding,
and for each activation the range that does least at the outputs. Then precision is raised where it
removes most damage for the fewest operations that leave 8 bits: activations to 16 bits, at last
single nodes to float. Every step is measured on samples that were not calibrated on. A largest drop
counts as kept where they show it; all trials of a search are wrong together once in twenty times.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.memory import old_objects_left_alone
from vermilion.progress import Progress, no_progress
from vermilion.quantize.evidence import CONFIDENCE
from vermilion.quantize.feeds import checked, input_slots
from vermilion.quantize.formats import Scheme, any_scheme_named
from vermilion.quantize.hold_out import (
    HELD_OUT_BYTES,
    HELD_OUT_EVERY,
    HELD_OUT_SAMPLES,
    MOST_HELD_OUT,
    MOST_TOGETHER,
    HeldOut,
    hold_out,
    samples_for,
)
from vermilion.quantize.judge import Judge, Verdict
from vermilion.quantize.labels import Labels, as_labels
from vermilion.quantize.metrics import DECISIONS, Metric
from vermilion.quantize.options import Options
from vermilion.quantize.own_metric import as_metric
from vermilion.quantize.remedies import Ladder, integer_ladder, other_ladder
from vermilion.quantize.result import Quantized
from vermilion.quantize.sensitivity import Damage
from vermilion.quantize.texts import ALPHABET_KEY, alphabet_of
from vermilion.quantize.widen import widened

# Noise a thousandth of the signal turns few real decisions.
_CLEAR_DB = 30.0
_CLEAR_DROP = 0.1
# What doubles resolve is about 320 dB.
_MOST_DB = 1000.0

# How sure the first trial has to be, and each of the further ones, of which there are no more than
# so many: what they may miss adds up to what one bound may.
_FIRST = 1.0 - 0.6 * (1.0 - CONFIDENCE)
_MOST_FURTHER = 32
_FURTHER = 1.0 - 0.4 * (1.0 - CONFIDENCE) / _MOST_FURTHER


@dataclass(frozen=True)
class Promise:
    """What must hold on held-out samples; one of both.

    Units: `max_drop` is a part of the metric that the float model reaches; without a metric, of
    the decisions (largest of the classes, or above one half) that agree with the float model's.
    It has to be shown with 95 % confidence, the sample being the unit. `min_sqnr_db` holds for
    every output, as measured.

    `metric` is a name, a function or an object (see `own_metric`); `direction` says which way is
    better, `larger` or `smaller`, and `bounds` what its figures cannot pass, where the metric does
    not say so itself. `labels` are a file or a sequence, one for each sample; with labels alone the
    metric follows from what they are. `files` are those that samples come from, in their order.
    """

    max_drop: float | None = None
    min_sqnr_db: float | None = None
    metric: object = None
    labels: object = None
    direction: str | None = None
    bounds: tuple[float, float] | None = None
    files: Sequence[Any] = dataclasses.field(default=(), repr=False)

    def __post_init__(self) -> None:
        if (self.max_drop is None) == (self.min_sqnr_db is None):
            raise OptionError("an accuracy promise is either a largest drop or a smallest SQNR")
        if self.max_drop is not None and not 0.0 <= self.max_drop < 1.0:
            raise OptionError(
                f"a largest drop of {self.max_drop:.0%} makes no sense", hint="write `1%`"
            )
        # NaN too: it is not within the bounds.
        if self.min_sqnr_db is not None and not abs(self.min_sqnr_db) <= _MOST_DB:
            raise OptionError(
                f"an SQNR of {self.min_sqnr_db:g} dB is no promise",
                hint=f"8 bits reach about 40 dB; more than {_MOST_DB:,} dB no number format does",
            )


@dataclass(frozen=True)
class Trial:
    """One thing that was tried.

    Units: `drop` as in `Promise`, and `bound` what it does not exceed with the confidence that the
    search leaves this trial; `seconds` of wall clock; `eight_bit_share` of all operations.
    `samples_needed` is how many samples in all, losing alike, would show that the drop is as small
    as promised; 0 where none would. `fault` says what is not finite.
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
    fault: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the row of the ladder."""
        row = dataclasses.asdict(self)
        row["options"] = self.options.as_json()
        if math.isinf(self.bound):
            row["bound"] = None
        return row


@dataclass(frozen=True)
class Guarded:
    """The cheapest result that keeps the promise; where none does, the best one.

    `held_out` samples were not calibrated on; `metric` names what was counted.
    """

    quantized: Quantized
    ladder: tuple[Trial, ...]
    met: bool
    damage: tuple[Damage, ...] = ()
    held_out: int = 0
    promise: Promise | None = None
    metric: str = ""

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

    Raises: as `quantize_model`; OptionError where there are too few samples to hold some out, or
    where a metric gives no number.
    """
    model = widened(model)
    labels = as_labels(promise.labels)
    metric = _metric_of(model, promise, labels)
    held = HeldOut()
    most = HELD_OUT_SAMPLES if metric is None else _most_for(metric)
    stream = hold_out(checked(samples, input_slots(model)), held, most)
    scheme = any_scheme_named(options.scheme)
    start = integer_ladder if isinstance(scheme, Scheme) else other_ladder
    ladder = start(model, stream, held, options, progress)
    if not held.samples:
        raise OptionError(
            "an accuracy promise needs samples to hold out",
            hint=f"give at least {HELD_OUT_EVERY}; 32 or more are usual",
        )
    measured = Measurement(model, metric, labels, held, promise.files)
    search = _AccuracySearch(ladder, promise, measured, progress)
    search.go(options)
    best = search.best()
    quantized = ladder.finish(best.options, progress, details=details)
    return Guarded(
        quantized,
        tuple(search.trials),
        best.met,
        tuple(ladder.damage),
        measured.held_out,
        promise,
        measured.metric,
    )


def _most_for(metric: Metric) -> int:
    return MOST_HELD_OUT if metric.is_mean else MOST_TOGETHER


def _metric_of(model: ir.Model, promise: Promise, labels: Labels | None) -> Metric | None:
    """Return what is counted: what was asked for, or what labels are for, or decisions."""
    if promise.max_drop is None:
        if promise.metric is not None or labels is not None:
            raise OptionError("a metric and labels go with a largest drop, not with an SQNR")
        return None
    given = promise.metric
    if given is None:
        given = DECISIONS if labels is None else _metric_for(labels)
    return as_metric(
        given,
        direction=promise.direction,
        bounds=promise.bounds,
        alphabet=alphabet_of(model.metadata_props.get(ALPHABET_KEY)),
    )


def _metric_for(labels: Labels) -> str:
    first = next(iter(labels.by_file.values()), None) if labels.by_file else labels.by_index[0]
    if isinstance(first, str):
        return "cer"
    if not isinstance(first, list | Mapping) and np.asarray(first).size == 1:
        return "top1"
    raise OptionError(
        "the labels are neither classes nor text, so they do not say which metric is meant",
        where=labels.source,
        hint="name it with `--metric`: miou, map, f1, … or MODULE:FUNCTION",
    )


class Measurement:
    """What the float model gives on the samples held out, and how far another is from it."""

    def __init__(
        self,
        model: ir.Model,
        metric: Metric | None,
        labels: Labels | None,
        held: HeldOut,
        files: Sequence[Any],
    ) -> None:
        self._held = held
        self.metric = "" if metric is None else metric.name
        self.most = HELD_OUT_SAMPLES if metric is None else _most_for(metric)
        """How many samples would be measured on at most."""
        exact = self._run(model, len(held.samples))
        self.held_out = len(exact)
        """How many samples are measured on."""
        label = None
        if labels is not None:

            def label(index: int) -> Any:
                return labels.of(index, files[index] if index < len(files) else None)

        self._judge = Judge(metric, exact, held, label)

    def of(self, model: ir.Model) -> Verdict:
        """Run a quantized model and compare."""
        return self._judge.judge(self._run(model, self.held_out))

    def _run(self, model: ir.Model, most: int) -> list[dict[str, Array]]:
        session = open_session(model, quiet=True)
        found: list[dict[str, Array]] = []
        size = 0
        for sample in self._held.samples[:most]:
            if size > HELD_OUT_BYTES and len(found) >= HELD_OUT_SAMPLES:
                break
            outputs = run_session(session, sample)
            # Copied: an array of ONNX Runtime's keeps all memory of the session alive.
            found.append({n: a.copy() for n, a in outputs.items() if isinstance(a, np.ndarray)})
            size += sum(array.nbytes for array in found[-1].values())
        return found


def measurement(model: ir.Model, promise: Promise | None, held: HeldOut) -> Measurement:
    """Return what a promise's metric, or the SQNR alone, is measured with."""
    if promise is None or (promise.metric is None and promise.labels is None):
        return Measurement(model, None, None, held, ())
    labels = as_labels(promise.labels)
    return Measurement(model, _metric_of(model, promise, labels), labels, held, promise.files)


class _AccuracySearch:
    """The trials, as they are made."""

    def __init__(
        self, ladder: Ladder, promise: Promise, measured: Measurement, progress: Progress
    ) -> None:
        self._ladder, self._promise, self._measured = ladder, promise, measured
        self._progress = progress
        self._lost = True
        self.trials: list[Trial] = []

    def best(self) -> Trial:
        """Return the cheapest trial that keeps the promise, or where none does, the best."""
        kept = [trial for trial in self.trials if trial.met]
        if kept:
            return max(kept, key=lambda trial: (trial.eight_bit_share, trial.sqnr_db))
        sound = [trial for trial in self.trials if not trial.fault] or self.trials
        if self._promise.max_drop is None:
            return max(sound, key=lambda trial: trial.sqnr_db)
        return max(sound, key=lambda trial: (-trial.drop, trial.sqnr_db))

    def go(self, options: Options) -> None:
        """Search until the promise is kept, or nothing is lost and more samples would be needed."""
        self._ladder.climb(options, self)

    def missing_db(self) -> float | None:
        """Return by how much the best trial misses a promised SQNR; None: a drop was promised."""
        if self._promise.min_sqnr_db is None:
            return None
        return self._promise.min_sqnr_db - self.best().sqnr_db

    def is_end(self, trial: Trial) -> bool:
        """Say whether no other trial could show more: this one is good, or lost nothing at all."""
        lost_nothing = self._promise.max_drop is not None and not self._lost
        return trial.met or lost_nothing or len(self.trials) > _MOST_FURTHER

    def attempt(self, what: str, options: Options) -> Trial:
        """Quantize so, and measure; what was tried before is not tried again."""
        known = next((trial for trial in self.trials if trial.options == options), None)
        if known is not None:
            return known
        begin = time.perf_counter()
        made, share = self._ladder.make(options)
        verdict = self._measured.of(made)
        trial = self._trial(what, options, verdict, share, begin)
        self._lost = verdict.has_losses
        self.trials.append(trial)
        self._progress("ladder", len(self.trials), 0)
        return trial

    def _trial(
        self, what: str, options: Options, verdict: Verdict, share: float, begin: float
    ) -> Trial:
        most = self._promise.max_drop
        bound, total = verdict.drop, 0
        if most is None:
            met = not verdict.fault and verdict.sqnr_db >= (self._promise.min_sqnr_db or 0.0)
        else:
            confidence = _FURTHER if self.trials else _FIRST
            bound = verdict.bound(confidence)
            met = not verdict.fault and bound <= most
            needed = verdict.needed(most, _FIRST)
            total = samples_for(needed, self._measured.most) if needed else 0
        seconds = time.perf_counter() - begin
        return Trial(
            what,
            options,
            verdict.sqnr_db,
            verdict.drop,
            share,
            seconds,
            met,
            bound,
            total,
            verdict.fault,
        )
