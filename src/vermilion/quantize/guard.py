"""Keeping a promise on accuracy: what is tried, in which order, and what each step cost.

The cheapest remedies come first: other ranges, a scale for each channel, more careful rounding.
Then precision is raised where it removes most damage for the fewest operations that leave 8 bits:
activations to 16 bits, at last single nodes to float. Every step is measured on samples that were
not calibrated on.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.ir.measure import sqnr_from_sums
from vermilion.progress import Progress, no_progress
from vermilion.quantize.cost import eight_bit_share
from vermilion.quantize.formats import scheme_named
from vermilion.quantize.options import Options
from vermilion.quantize.quantize import Decided, Seen, decide, finish, look, write
from vermilion.quantize.result import Quantized
from vermilion.quantize.sensitivity import Damage, measure_damage

Outputs = Sequence[Mapping[str, Array]]
Metric = Callable[[Outputs], float]
"""Gives a figure for the outputs on all held-out samples in their order; larger is better."""

HELD_OUT_SAMPLES = 32
_HELD_OUT_EVERY = 4  # of the first samples, every fourth is not calibrated on
_DAMAGE_SAMPLES = 4
# A drop counted on a few samples is above that on all others as often as below: remedies that cost
# nothing at run time are tried until only this part of what was promised is left.
_SURE_PART = 0.5
_STEP = 2.0  # 3 dB: noise that a rung leaves, relative to the one before
_MOST_RUNGS = 8


@dataclass(frozen=True)
class Promise:
    """What must hold on held-out samples; one of both.

    Units: `max_drop` is a part of the metric that the float model reaches; without a metric, of
    the decisions (largest of the classes, or above one half) that agree with the float model's.
    `min_sqnr_db` holds for every output.
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
class Rung:
    """One thing that was tried.

    Units: `drop` as in `Promise`; `seconds` of wall clock; `eight_bit_share` of all operations.
    """

    what: str
    options: Options
    sqnr_db: float
    drop: float
    eight_bit_share: float
    seconds: float
    met: bool

    def as_json(self) -> dict[str, object]:
        """Give the row of the ladder."""
        row = dataclasses.asdict(self)
        row["options"] = self.options.as_json()
        return row


@dataclass(frozen=True)
class Guarded:
    """The cheapest result that keeps the promise; where none does, the best one.

    It was held to the promise on `held_out` samples, and is as sure as their number allows.
    """

    quantized: Quantized
    ladder: tuple[Rung, ...]
    met: bool
    damage: tuple[Damage, ...] = ()
    held_out: int = 0


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
    seen = look(model, _hold_out(samples, held_out), looked, progress, histograms=True)
    if not held_out:
        raise OptionError(
            "an accuracy promise needs samples to hold out",
            hint=f"give at least {_HELD_OUT_EVERY}; 32 or more are usual",
        )
    climb = _Climb(model, seen, promise, held_out, progress)
    climb.go(options)
    best = climb.best()
    quantized = finish(model, seen, best.options, progress, details=details)
    return Guarded(quantized, tuple(climb.ladder), best.met, tuple(climb.damage), len(held_out))


def held_out_of(
    samples: Iterable[Mapping[str, Array]],
) -> tuple[list[Mapping[str, Array]], list[Mapping[str, Array]]]:
    """Give the samples that a promise is held to, and those that are calibrated on."""
    kept: list[dict[str, Array]] = []
    rest = list(_hold_out(samples, kept))
    return list(kept), rest


def _hold_out(
    samples: Iterable[Mapping[str, Array]], kept: list[dict[str, Array]]
) -> Iterator[Mapping[str, Array]]:
    for number, sample in enumerate(samples):
        if number % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1 and len(kept) < HELD_OUT_SAMPLES:
            kept.append(dict(sample))
        else:
            yield sample


class _Climb:
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
        self._float_metric = None if promise.metric is None else promise.metric(self._reference)
        self.ladder: list[Rung] = []
        self.damage: list[Damage] = []

    def best(self) -> Rung:
        """Give the last rung where that is sure, else the one with least damage."""
        last = self.ladder[-1]
        if self._is_sure(last):
            return last
        kept = [rung for rung in self.ladder if rung.met] or self.ladder
        return max(kept, key=lambda rung: (-rung.drop, rung.sqnr_db))

    def go(self, options: Options) -> None:
        """Climb until the promise is surely kept, or kept and only what costs speed is left."""
        if self._is_sure(self._try("as asked", options)):
            return
        for what, change in _cheap_changes(options):
            rung = self._try(what, dataclasses.replace(options, **change))  # type: ignore[arg-type]
            if self._is_sure(rung):
                return
        if not self.best().met:
            self._raise(self.best().options)

    def _is_sure(self, rung: Rung) -> bool:
        """Say whether a drop leaves room for the chance of which samples were held out."""
        most = self._promise.max_drop
        if most is None:
            return rung.met
        # Not to have seen a thing among n samples does not say that it is rarer than 1 in n.
        return max(rung.drop, 1.0 / len(self._held_out)) <= most * _SURE_PART

    def _try(self, what: str, options: Options) -> Rung:
        begin = time.perf_counter()
        decided = decide(self._seen, options)
        share = eight_bit_share(decided.plan, decided.constants.parameters)
        write(decided)
        found = self._run(decided.work)
        sqnr_db, drop = self._sqnr_db(found), self._drop(found)
        promise = self._promise
        met = (
            drop <= promise.max_drop
            if promise.max_drop is not None
            else sqnr_db >= (promise.min_sqnr_db or 0.0)
        )
        seconds = time.perf_counter() - begin
        rung = Rung(what, options, sqnr_db, drop, share, seconds, met)
        self.ladder.append(rung)
        self._progress("ladder", len(self.ladder), 0)
        return rung

    def _raise(self, options: Options) -> None:
        """Raise precision step by step, each leaving about half of the noise before."""
        decided: Decided = decide(self._seen, options)
        samples = self._held_out[:_DAMAGE_SAMPLES]
        self.damage = measure_damage(
            decided.work, decided.plan, decided.constants, samples, self._progress
        )
        total = sum(row.noise for row in self.damage)
        if total <= 0.0:
            return
        aim = total / _STEP
        if self._promise.min_sqnr_db is not None:
            # Straight to the noise that the promise leaves room for.
            missing_db = self._promise.min_sqnr_db - self.best().sqnr_db
            aim = min(aim, total / 10.0 ** (missing_db / 10.0))
        wide_possible = not scheme_named(options.scheme).power_of_two
        for _ in range(_MOST_RUNGS):
            wide, exclude = raised_for(self.damage, aim, wide_possible)
            if not wide and not exclude:
                aim /= _STEP
                continue
            words = [f"{len(wide)} activations in 16 bits"] if wide else []
            words += [f"{len(exclude)} nodes in float"] if exclude else []
            raised = dataclasses.replace(
                options,
                wide=(*options.wide, *wide),
                exclude=(*options.exclude, *exclude),
            )
            if self._try(", ".join(words), raised).met:
                return
            aim /= _STEP

    def _run(self, model: ir.Model) -> list[dict[str, Array]]:
        session = open_session(model, quiet=True)
        return [run_session(session, sample) for sample in self._held_out]

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

    def _drop(self, found: Outputs) -> float:
        metric = self._promise.metric
        if metric is not None and self._float_metric is not None:
            whole = abs(self._float_metric) or 1.0
            return (self._float_metric - metric(found)) / whole
        agreed = [
            float(np.mean(decisions(exact[name]) == decisions(other[name])))
            for exact, other in zip(self._reference, found, strict=True)
            for name in exact
        ]
        return 1.0 - float(np.mean(agreed)) if agreed else 0.0


def decisions(output: Array) -> Array:
    """Give what an output decides: the largest class, or whether a single figure is above ½.

    Shapes: classes lie along axis 1 of images (N, C, H, W), along the last axis of all else.
    """
    axis = 1 if output.ndim == 4 else output.ndim - 1
    if output.dtype.kind != "f":
        return output
    if output.ndim == 0 or output.shape[axis] == 1:
        above: Array = output > 0.5
        return above
    largest: Array = output.argmax(axis=axis)
    return largest


def _cheap_changes(options: Options) -> Iterator[tuple[str, dict[str, object]]]:
    """Give remedies that cost nothing at run time, alone and then together."""
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
    for method in ("mse", "percentile"):
        if options.method != method:
            yield f"ranges by {method}", {**base, "method": method}


def raised_for(
    damage: Sequence[Damage], aim: float, wide_possible: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Choose what to raise so that the rest does no more than `aim`.

    Gives tensors for 16 bits and nodes for float. What removes most damage for each operation
    that leaves 8 bits goes first.
    """
    left = sum(row.noise for row in damage)
    whole = sum(row.operations for row in damage) or 1
    # Free ones (that no product reads) cost a thousandth, so that small ones wait their turn.
    ranked = sorted(damage, key=lambda row: -row.noise / (row.operations / whole + 1e-3))
    wide: list[tuple[str, ...]] = []
    nodes: list[tuple[str, ...]] = []
    for row in ranked:
        if left <= aim:
            break
        if row.kind == "weight":
            nodes.append(row.names)
        elif wide_possible:
            wide.append(row.names)
        else:
            continue
        left -= row.noise
    return tuple(itertools.chain(*wide)), tuple(itertools.chain(*nodes))
