"""What was lost on samples that were held out, and what that proves.

Each figure is judged by itself, so that outputs that nothing can change do not hide one that
changed: a promise holds where it holds for the worst of them. What is not finite where the float
model's outputs are is no figure at all, and fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vermilion.errors import ModelError, OptionError
from vermilion.ir.execute import Array
from vermilion.ir.measure import EXACT_DB, sqnr_from_sums
from vermilion.quantize.evidence import CONFIDENCE, samples_needed, upper_bound
from vermilion.quantize.hold_out import HeldOut
from vermilion.quantize.metrics import Metric, Outputs, is_real

_EXCHANGED_AT_ONCE = 8  # samples

Label = Callable[[int], Any]


@dataclass(frozen=True)
class Losses:
    """What each sample lost of one figure, in parts of what the float model reaches.

    `beyond` is what the figure of all lost more than the samples do one by one; `highest` is the
    most that a sample can lose. An `exponential` figure is a logarithm.
    """

    name: str
    each: tuple[float, ...]
    beyond: float
    highest: float
    exponential: bool = False

    @property
    def drop(self) -> float:
        """What was lost on these samples."""
        return self._grown(self.beyond + math.fsum(self.each) / len(self.each))

    def bound(self, confidence: float = CONFIDENCE) -> float:
        """Return what is not lost in truth, with that confidence; infinity where nothing says."""
        found = upper_bound(self.each, highest=self.highest, confidence=confidence)
        return self._grown(self.beyond + found)

    def needed(self, most: float, confidence: float = CONFIDENCE) -> int:
        """Return how many samples that lose alike would show a loss of no more than `most`."""
        most = (math.log1p(most) if self.exponential else most) - self.beyond
        return samples_needed(self.each, most, highest=self.highest, confidence=confidence)

    def _grown(self, value: float) -> float:
        if not self.exponential:
            return value
        return math.expm1(value) if value < 700.0 else math.inf


@dataclass(frozen=True)
class Verdict:
    """What a model lost: figure by figure, or `fault`, what makes it no model at all.

    Units: `sqnr_db` is that of the worst output.
    """

    sqnr_db: float
    losses: tuple[Losses, ...] = ()
    fault: str = ""

    @property
    def drop(self) -> float:
        """What the worst figure lost; all, where there is a fault."""
        return 1.0 if self.fault else max((row.drop for row in self.losses), default=0.0)

    @property
    def has_losses(self) -> bool:
        """Say whether any sample lost anything."""
        return bool(self.fault) or any(any(row.each) or row.beyond > 0.0 for row in self.losses)

    def bound(self, confidence: float = CONFIDENCE) -> float:
        """Return what no figure lost more than, with that confidence."""
        if self.fault:
            return 1.0
        return max((row.bound(confidence) for row in self.losses), default=0.0)

    def needed(self, most: float, confidence: float = CONFIDENCE) -> int:
        """Return how many samples would show it; 0: none."""
        if self.fault:
            return 0
        counts = [row.needed(most, confidence) for row in self.losses]
        return max(counts, default=0) if all(counts) else 0


class Judge:
    """Holds what the float model gives on the samples held out, and compares."""

    def __init__(
        self, metric: Metric | None, exact: Sequence[Outputs], held: HeldOut, label: Label | None
    ) -> None:
        """Count by `metric`, or by SQNR alone."""
        self._metric, self._exact = metric, exact
        self._samples = held.samples[: len(exact)]
        self._indices = held.indices[: len(exact)]
        for number, outputs in zip(self._indices, exact, strict=True):
            name = next((n for n, a in outputs.items() if _has_nan(a)), None)
            if name is not None:
                raise ModelError(
                    f"the float model itself gives NaN at output `{name}`",
                    where=f"sample {number}, held out",
                    hint="look at that sample's preprocessing",
                )
        if metric is None:
            return
        if label is not None:
            self._labels = [label(number) for number in self._indices]
        elif metric.truth is not None:
            pairs = zip(exact, self._samples, strict=True)
            self._labels = [metric.truth(outputs, sample) for outputs, sample in pairs]
        else:
            self._labels = [None] * len(exact)
        self._rows = self._rows_of(exact)
        self._reached = _by_name(metric.figure(self._rows))
        for name, figure in self._reached.items():
            if not math.isfinite(figure):
                raise OptionError(
                    f"the metric `{metric.name}` gives {figure} for the float model's own outputs",
                    where=f"figure `{name}`" if name else "",
                    hint="a promise needs a number to start from",
                )
            slack = 1e-9 * (1.0 + abs(figure))  # of rounding: a cosine may be 1 and a little
            within = metric.low - slack <= figure <= metric.high + slack
            if metric.high_of is None and not within:
                raise OptionError(
                    f"the metric `{metric.name}` gives {figure:g} for the float model's own "
                    f"outputs, and figures from {metric.low:g} to {metric.high:g} were said",
                    where=f"figure `{name}`" if name else "",
                    hint="how far one sample can pull the figure follows from the range: say the "
                    "one that it has, or none",
                )

    def judge(self, found: Sequence[Outputs]) -> Verdict:
        """Compare the outputs of another model on the same samples."""
        sqnr_db, fault = self._compared(found)
        metric = self._metric
        if fault or metric is None:
            return Verdict(sqnr_db, fault=fault)
        rows = self._rows_of(found)
        figures = _by_name(metric.figure(rows))
        wrong = next((n for n in self._reached if not math.isfinite(figures.get(n, 0.0))), None)
        if wrong is not None:
            return Verdict(sqnr_db, fault=f"the metric `{metric.name}` gives {figures[wrong]}")
        if figures.keys() != self._reached.keys():
            raise OptionError(f"the metric `{metric.name}` returns other names the second time")
        losses = [
            one
            for name, figure in figures.items()
            for one in _losses(metric, name, self._rows, rows, self._reached[name], figure)
        ]
        return Verdict(sqnr_db, tuple(losses))

    def _rows_of(self, found: Sequence[Outputs]) -> list[Any]:
        assert self._metric is not None, "there is a metric"
        several = zip(found, self._samples, self._indices, self._labels, strict=True)
        return [self._metric.row(*one) for one in several]

    def _compared(self, found: Sequence[Outputs]) -> tuple[float, str]:
        """Return the SQNR of the worst output, and what is not finite."""
        worst = EXACT_DB
        for name, first in self._exact[0].items():
            if not is_real(first):
                continue
            signal = noise = 0.0
            for number, exact, other in zip(self._indices, self._exact, found, strict=True):
                a, b = exact[name].astype(np.float64), other[name].astype(np.float64)
                if a.shape != b.shape:
                    where = f"output `{name}` of sample {number}, held out"
                    return -EXACT_DB, f"{where}, has the shape {b.shape}, not {a.shape}"
                finite = np.isfinite(a)
                if not np.array_equal(finite, np.isfinite(b)) or np.any(a[~finite] != b[~finite]):
                    what = "NaN" if np.isnan(b).any() else "infinite numbers"
                    where = f"output `{name}` of sample {number}, held out"
                    return -EXACT_DB, f"{what} in {where}, where the float model has none"
                signal += float(np.sum(a[finite] ** 2))
                noise += float(np.sum((a[finite] - b[finite]) ** 2))
            worst = min(worst, sqnr_from_sums(signal, noise))
        return worst, ""


def _has_nan(array: Array) -> bool:
    return is_real(array) and bool(np.isnan(array.astype(np.float64)).any())


def _by_name(figure: float | Mapping[str, float]) -> dict[str, float]:
    return dict(figure) if isinstance(figure, Mapping) else {"": float(figure)}


def _losses(
    metric: Metric,
    name: str,
    exact: Sequence[Any],
    found: Sequence[Any],
    reached: float,
    figure: float,
) -> list[Losses]:
    """Return what each sample lost, one way or (where nobody said which is worse) both ways."""
    if metric.is_mean:
        pairs = zip(exact, found, strict=True)
        each = [_of(a, name) - _of(b, name) for a, b in pairs]
    else:
        each = [
            len(exact) * change
            for change in lost_by_each(
                lambda rows: _of(metric.figure(rows), name), exact, found, reached
            )
        ]
    beyond = (reached - figure) - math.fsum(each) / len(each)
    own = [_of(row, name) for row in exact] if metric.is_mean else []
    weight = _largest_weight(metric, exact)
    found_ways = []
    for larger in (True, False) if metric.larger_is_better is None else (metric.larger_is_better,):
        parts, highest = _scale(metric, larger, exact, own, reached, figure)
        sign = (1.0 if larger else -1.0) / parts
        found_ways.append(
            Losses(
                name,
                tuple(sign * loss for loss in each),
                sign * beyond,
                weight * highest / parts,
                metric.exponential,
            )
        )
    return found_ways


def _of(figure: Any, name: str) -> float:
    return float(figure[name] if isinstance(figure, Mapping) else figure)


def _largest_weight(metric: Metric, rows: Sequence[Any]) -> float:
    if metric.weights is None:
        return 1.0
    weights = metric.weights(rows)
    return max(weights) * len(weights) / (math.fsum(weights) or 1.0)


def _scale(
    metric: Metric,
    larger: bool,
    rows: Sequence[Any],
    own: Sequence[float],
    reached: float,
    figure: float,
) -> tuple[float, float]:
    """Return what losses are parts of, and the most that a sample's figure can lose.

    An error rate counts as what it leaves: 2 % of errors are 98 % of successes. `own` are the
    figures of single samples, where they have any.
    """
    low, high = metric.low, metric.high if metric.high_of is None else metric.high_of(rows)
    undeclared = metric.larger_is_better is None
    if math.isinf(low) and min(reached, figure, *own) >= 0.0:
        low = 0.0  # of figures that are all positive, nothing is left at zero
    if math.isinf(high) and low >= 0.0 and max(reached, figure, *own) <= 1.0:
        high = 1.0  # shares
    if larger:
        best = max(own) if own else high if math.isfinite(high) else reached
        parts = reached - low if math.isfinite(low) and not undeclared else abs(reached)
        return parts or 1.0, best - low
    best = min(own) if own else low if math.isfinite(low) else reached
    if metric.exponential:
        return 1.0, high - best
    parts = high - reached if math.isfinite(high) and not undeclared else abs(reached)
    return parts or 1.0, high - best


def lost_by_each(
    figure: Callable[[Sequence[Any]], float],
    exact: Sequence[Any],
    found: Sequence[Any],
    reached: float,
) -> list[float]:
    """Return by how much a figure falls when one sample's row alone is that of `found`.

    A metric sees all samples at once, so what one of them does is found by exchanging it. Where a
    few neighbours together change nothing, none of them is looked at alone.
    """
    lost = [0.0] * len(found)

    def look_at(start: int, end: int) -> None:
        alone = end - start == 1
        if end - start <= _EXCHANGED_AT_ONCE:
            change = reached - figure([*exact[:start], *found[start:end], *exact[end:]])
            if alone:
                lost[start] = change
            if change == 0.0 or alone:
                return
        middle = (start + end) // 2
        look_at(start, middle)
        look_at(middle, end)

    look_at(0, len(found))
    return lost
