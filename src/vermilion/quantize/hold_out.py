"""Which samples are held out of calibration, to measure on them what is promised."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from vermilion.ir.execute import Array

HELD_OUT_SAMPLES = 32
"""Held out for an SQNR at most, which is a mean over all numbers of an output."""

HELD_OUT_EVERY = 4  # of the first samples, every fourth is not calibrated on
_CALIBRATED_FIRST = 32  # then ranges hardly widen any more, and all but every eighth is held out
_CALIBRATED_EVERY = 8
# For a largest drop: what shows it although two samples lost all. (Clopper and Pearson's bound of
# 2 among n is 6.3 ÷ n.)
_HELD_OUT_TIMES_DROP = 6.3
_MOST_HELD_OUT = 1024
HELD_OUT_BYTES = 512 * 1024 * 1024  # of samples; and of what the model gives for them


def most_for(max_drop: float) -> int:
    """Return how many samples are held out at most where so large a drop has to be shown."""
    wanted = _HELD_OUT_TIMES_DROP / max(max_drop, 1e-9)
    return max(HELD_OUT_SAMPLES, min(_MOST_HELD_OUT, math.ceil(wanted)))


def held_out_of(
    samples: Iterable[Mapping[str, Array]], most: int = HELD_OUT_SAMPLES
) -> tuple[list[Mapping[str, Array]], list[Mapping[str, Array]]]:
    """Return the samples that a promise is held to, and those that are calibrated on."""
    kept: list[dict[str, Array]] = []
    rest = list(hold_out(samples, kept, most))
    return list(kept), rest


def hold_out(
    samples: Iterable[Mapping[str, Array]], kept: list[dict[str, Array]], most: int
) -> Iterator[Mapping[str, Array]]:
    """Pass on what is calibrated on, and keep the rest, `most` samples of it."""
    calibrated = size = 0
    for number, sample in enumerate(samples):
        later = calibrated >= _CALIBRATED_FIRST and most > HELD_OUT_SAMPLES
        turn = (
            number % _CALIBRATED_EVERY != 0
            if later
            else number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        )
        if turn and len(kept) < most and size < HELD_OUT_BYTES:
            kept.append(dict(sample))
            size += sum(array.nbytes for array in sample.values())
        else:
            calibrated += 1
            yield sample


def samples_for(held_out: int) -> int:
    """Return how many samples there must be for so many to be held out of them."""
    early = _CALIBRATED_FIRST * HELD_OUT_EVERY // (HELD_OUT_EVERY - 1)
    held_early = early - _CALIBRATED_FIRST
    if held_out <= held_early:
        return held_out * HELD_OUT_EVERY
    later = math.ceil((held_out - held_early) * _CALIBRATED_EVERY / (_CALIBRATED_EVERY - 1))
    return early + 1 + later


Outputs = Sequence[Mapping[str, Array]]
Metric = Callable[[Outputs], float]
"""Gives a figure for the outputs on all held-out samples in their order; larger is better."""

_EXCHANGED_AT_ONCE = 8  # samples


def lost_by_each(metric: Metric, exact: Outputs, found: Outputs, reached: float) -> list[float]:
    """Return by how much the metric falls when one sample's outputs alone are those of `found`.

    A metric sees all samples at once, so what one of them does is found by exchanging it. Where a
    few neighbours together change nothing, none of them is looked at alone.
    """
    lost = [0.0] * len(found)

    def look_at(start: int, end: int) -> None:
        alone = end - start == 1
        if end - start <= _EXCHANGED_AT_ONCE:
            change = reached - metric([*exact[:start], *found[start:end], *exact[end:]])
            if alone:
                lost[start] = change
            if change == 0.0 or alone:
                return
        middle = (start + end) // 2
        look_at(start, middle)
        look_at(middle, end)

    look_at(0, len(found))
    return lost


def disagreement(exact: Mapping[str, Array], other: Mapping[str, Array]) -> tuple[float, float]:
    """Return the part of a sample's decisions that differ, and what one of them makes."""
    differing = [decisions(exact[name]) != decisions(other[name]) for name in exact]
    share = float(np.mean([np.mean(each) for each in differing if each.size] or [0.0]))
    return share, 1.0 / max(1, len(differing) * max((each.size for each in differing), default=1))


def decisions(output: Array) -> Array:
    """Return what an output decides: the largest class, or whether a single figure is above ½.

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
