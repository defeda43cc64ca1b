"""What a promise counts: figures of outputs, the way that is better, and how far they can go.

A metric makes a row of each sample, and a figure of all rows. What one sample lost is found by
putting its own row among those of the float model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vermilion.errors import OptionError
from vermilion.ir.execute import Array

Outputs = Mapping[str, Array]
Sample = Mapping[str, Array]
Figure = float | Mapping[str, float]
MakeRow = Callable[[Outputs, Sample, int, Any], Any]


@dataclass(frozen=True)
class Metric:
    """A figure by which outputs are judged.

    `row` takes the outputs of one sample, the sample, its number among all that were given, and
    its label (None without labels); `figure` makes one number of all rows, or one for each name
    that it gives. Where the figure `is_mean`, a row is the sample's own figure (or figures).
    `larger_is_better` None: nobody said, and a change either way counts as lost. `low` and `high`
    are what a figure cannot pass, infinite where that is not known. `weights` says how much each
    row counts where they do not count alike. An `exponential` figure is a logarithm: what is lost
    is the growth of what it stands for. `takes_truth` says that the float model's own outputs,
    through `truth`, stand in for labels.
    """

    name: str
    row: MakeRow
    figure: Callable[[Sequence[Any]], Figure]
    larger_is_better: bool | None = True
    low: float = 0.0
    high: float = 1.0
    is_mean: bool = False
    weights: Callable[[Sequence[Any]], Sequence[float]] | None = None
    exponential: bool = False
    high_of: Callable[[Sequence[Any]], float] | None = None
    truth: Callable[[Outputs, Sample], Any] | None = None


def mean_figure(rows: Sequence[Any]) -> Figure:
    """Return the mean of figures, or of each of the figures that samples have by name."""
    if rows and isinstance(rows[0], Mapping):
        return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return float(np.mean([float(row) for row in rows]))


def decisions(output: Array) -> Array:
    """Return what an output decides: the largest class, or whether a single figure is above ½.

    Shapes: classes lie along axis 1 of images (N, C, H, W), along the last axis of all else.
    """
    axis = 1 if output.ndim == 4 else output.ndim - 1
    if not is_real(output):
        return output
    if output.ndim == 0 or output.shape[axis] == 1:
        above: Array = output > 0.5
        return above
    largest: Array = output.argmax(axis=axis)
    return largest


def is_real(array: Array) -> bool:
    """Say whether an array holds real numbers, bfloat16 among them."""
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _decided(outputs: Outputs, sample: Sample) -> dict[str, Array]:
    return {name: decisions(array) for name, array in outputs.items() if array.size}


def _agreeing(outputs: Outputs, sample: Sample, index: int, label: Any) -> Figure:
    return {
        name: float(np.mean(decisions(outputs[name]) == right)) for name, right in label.items()
    }


DECISIONS = Metric("decisions", _agreeing, mean_figure, is_mean=True, truth=_decided)
"""The share of decisions that agree with the float model's, output by output."""


def real_output(outputs: Outputs) -> Array:
    """Return the output that is judged: the first that holds real numbers."""
    real = [array for array in outputs.values() if is_real(array)]
    if not real:
        raise OptionError("the metric needs an output of real numbers, and the model has none")
    return real[0].astype(np.float64)


def _classes(scores: Array) -> Array:
    """Return scores as (rows, classes)."""
    if scores.ndim == 4:
        scores = np.moveaxis(scores, 1, -1)
    flat: Array = scores.reshape(-1, scores.shape[-1] if scores.ndim else 1)
    return flat


def _rows_of(label: Any, scores: Array) -> Array:
    """Return the class of each row of scores (rows, classes)."""
    count, classes = scores.shape
    wanted = np.asarray(label).reshape(-1)
    if wanted.size == 1 and count > 1:
        wanted = np.repeat(wanted, count)
    if wanted.size != count or wanted.dtype.kind not in "iub":
        raise OptionError(
            f"a label holds {wanted.size} values of type {wanted.dtype} for {count} rows of scores",
            hint="give one whole number for each: the class",
        )
    found: Array = wanted.astype(np.int64)
    _check_classes(found, classes)
    return found


def _check_classes(wanted: Array, classes: int) -> None:
    outside = wanted[(wanted < 0) | (wanted >= classes)]
    if outside.size:
        raise OptionError(
            f"a label is {outside[0]}, and the model gives scores for 0 to {classes - 1}",
            hint="labels count classes (or tokens) from 0, in the order of the scores",
        )


def _top(most: int) -> MakeRow:
    def row(outputs: Outputs, sample: Sample, index: int, label: Any) -> float:
        scores = _classes(real_output(outputs))
        if scores.shape[1] == 1:
            scores = np.concatenate([0.5 - scores, scores - 0.5], axis=1)
        wanted = _rows_of(label, scores)
        own = np.take_along_axis(scores, wanted[:, None], axis=1)
        above = (scores > own).sum(axis=1)
        # Of equal scores, the first counts.
        before = np.arange(scores.shape[1])[None, :] < wanted[:, None]
        return float(np.mean(above + ((scores == own) & before).sum(axis=1) < most))

    return row


def _largest(outputs: Outputs, sample: Sample) -> Array:
    scores = _classes(real_output(outputs))
    found: Array = (scores[:, 0] > 0.5) * 1 if scores.shape[1] == 1 else scores.argmax(axis=1)
    return found


def _overlaps(outputs: Outputs, sample: Sample, index: int, label: Any) -> Array:
    """Return, class by class, the pixels of both masks and of either."""
    scores = real_output(outputs)
    mask = decisions(scores[None] if scores.ndim == 3 else scores).astype(np.int64).reshape(-1)
    wanted = np.asarray(label).reshape(-1)
    if mask.size != wanted.size:
        raise OptionError(f"a mask of {wanted.size} pixels is the label of one of {mask.size}")
    classes = max(2, scores.shape[1] if scores.ndim == 4 else scores.shape[0])
    counts = (wanted >= 0) & (wanted < classes)  # 255: no matter what is there
    mask, wanted = mask[counts], wanted[counts].astype(np.int64)
    both = np.bincount(wanted[mask == wanted], minlength=classes)
    either = np.bincount(mask, minlength=classes) + np.bincount(wanted, minlength=classes) - both
    found: Array = np.stack([both, either])
    return found


def _mean_overlap(rows: Sequence[Any]) -> float:
    both, either = np.sum(rows, axis=0)
    there = either > 0
    return float(np.mean(both[there] / either[there])) if there.any() else 1.0


def _mask(outputs: Outputs, sample: Sample) -> Array:
    scores = real_output(outputs)
    return decisions(scores[None] if scores.ndim == 3 else scores)


def _hits(outputs: Outputs, sample: Sample, index: int, label: Any) -> Array:
    """Return, class by class, what was found, found wrongly, and missed."""
    scores, wanted = real_output(outputs), np.asarray(label)
    if (wanted.size == scores.size and wanted.size > 1) or scores.shape[-1:] == (1,):
        least = 0.5 if scores.min() >= 0.0 and scores.max() <= 1.0 else 0.0
        found, right = (scores.reshape(1, -1) > least), wanted.reshape(1, -1) > 0
    else:
        rows = _classes(scores)
        classes = np.arange(rows.shape[1])[:, None]
        found = rows.argmax(axis=1) == classes
        right = _rows_of(wanted, rows) == classes
        if len(classes) == 2:
            found, right = found[1:], right[1:]  # yes or no: yes counts
    counted: Array = np.stack(
        [(found & right).sum(1), (found & ~right).sum(1), (~found & right).sum(1)]
    )
    return counted


def _harmonic(rows: Sequence[Any]) -> float:
    hit, wrong, missed = np.sum(rows, axis=0).astype(np.float64)
    there = hit + wrong + missed > 0
    return (
        float(np.mean((2 * hit / np.maximum(2 * hit + wrong + missed, 1.0))[there]))
        if there.any()
        else 1.0
    )


def _surprise(outputs: Outputs, sample: Sample, index: int, label: Any) -> Array:
    """Return the sum of -log p of the next tokens, their number, and the logarithm of the words."""
    logits = real_output(outputs)
    logits = logits.reshape(-1, logits.shape[-2], logits.shape[-1])
    wanted = np.asarray(label).reshape(len(logits), -1).astype(np.int64)
    if wanted.shape[1] == logits.shape[1]:
        logits, wanted = logits[:, :-1], wanted[:, 1:]
    elif wanted.shape[1] != logits.shape[1] - 1:
        raise OptionError(f"{wanted.shape[1]} tokens are the label of {logits.shape[1]} places")
    counts = wanted >= 0  # -100: no token
    logits, wanted = logits[counts], wanted[counts]
    _check_classes(wanted, logits.shape[1])
    shifted = logits - logits.max(axis=1, keepdims=True)
    spread = np.log(np.exp(shifted).sum(axis=1))
    own = spread - np.take_along_axis(shifted, wanted[:, None], axis=1)[:, 0]
    most = math.log(logits.shape[1])
    # Worse than no idea at all counts as no idea: so one sample can lose only so much.
    return np.asarray([min(float(own.sum()), most * own.size), own.size, most])


def _tokens(outputs: Outputs, sample: Sample) -> Array:
    whole = [array for array in sample.values() if array.dtype.kind in "iu"]
    name = next((n for n in sample if "input_ids" in n or "tokens" in n), None)
    if name is None and not whole:
        raise OptionError("perplexity needs tokens", hint="give them as `labels`")
    return sample[name] if name is not None else whole[0]


def _per_part(rows: Sequence[Any]) -> float:
    total = np.sum(rows, axis=0)
    return float(total[0] / max(total[1], 1.0))


def _parts(rows: Sequence[Any]) -> Sequence[float]:
    return [float(row[1]) for row in rows]


def _cosine(outputs: Outputs, sample: Sample, index: int, label: Any) -> Figure:
    pairs = label if isinstance(label, Mapping) else {next(iter(outputs)): label}
    found = {}
    for name, right in pairs.items():
        a, b = (np.asarray(x, np.float64).reshape(-1) for x in (outputs[name], right))
        size = math.sqrt(float(np.dot(a, a)) * float(np.dot(b, b)))
        found[name] = float(np.dot(a, b)) / size if size else float(not (a.any() or b.any()))
    return found


def _all_real(outputs: Outputs, sample: Sample) -> dict[str, Array]:
    return {name: array for name, array in outputs.items() if is_real(array)}


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("top1", _top(1), mean_figure, is_mean=True, truth=_largest),
        Metric("top5", _top(5), mean_figure, is_mean=True, truth=_largest),
        Metric("miou", _overlaps, _mean_overlap, truth=_mask),
        Metric("f1", _hits, _harmonic, truth=_largest),
        Metric(
            "perplexity",
            _surprise,
            _per_part,
            larger_is_better=False,
            exponential=True,
            weights=_parts,
            high_of=lambda rows: float(rows[0][2]),
            truth=_tokens,
        ),
        Metric("cosine", _cosine, mean_figure, low=-1.0, is_mean=True, truth=_all_real),
    )
}
