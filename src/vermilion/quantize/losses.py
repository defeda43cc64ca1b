"""What each held-out sample loses when a model is quantized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from vermilion.ir.execute import Array

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
