"""Operators that search and scan: the largest, running sums, boxes that do not overlap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Function, Table, computes, moves

Array = NDArray[Any]


def _top_k(call: Call) -> tuple[Array, Array]:
    x = call[0]
    axis = call.axis(call.integer("axis", -1), x.ndim)
    count = call.integer("k") if call.version < 10 else int(call.scalar(1))
    if not 0 <= count <= x.shape[axis]:
        raise call.error(f"it wants {count} of {x.shape[axis]} elements")
    if call.integer("largest", 1):
        # Of equal values the first one wins, so that the order is turned before and after.
        order = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        places = x.shape[axis] - 1 - np.flip(order, axis)
    else:
        places = np.argsort(x, axis=axis, kind="stable")
    places = np.take(places, np.arange(count), axis).astype(np.int64)
    return np.take_along_axis(x, places, axis), places


def _scan(function: Callable[..., Array], start: int) -> Function:
    def scanned(call: Call) -> Array:
        x = call[0]
        axis = call.axis(int(call.scalar(1)), x.ndim)
        turns = bool(call.integer("reverse", 0))
        x = np.flip(x, axis) if turns else x
        if call.integer("exclusive", 0):
            first = list(x.shape)
            first[axis] = min(1, first[axis])
            kept = np.take(x, np.arange(max(0, x.shape[axis] - 1)), axis)
            x = np.concatenate([np.full(first, start, x.dtype), kept], axis)
        result = function(x, axis=axis).astype(x.dtype)
        return np.flip(result, axis) if turns else result

    return scanned


def _corners(boxes: Array, is_centred: bool) -> Array:
    """Return boxes as (low y, low x, high y, high x)."""
    if is_centred:
        x, y, width, height = boxes.T
        return np.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], 1)
    first, second = boxes[:, :2], boxes[:, 2:]
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], 1)


def _overlaps(box: Array, others: Array) -> Array:
    """Return the intersection over the union of one box with others."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    common = np.prod(np.maximum(high - low, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    union = np.prod(box[2:] - box[:2]) + areas - common
    return np.where(common > 0, common / union, 0.0)


def _suppressed(corners: Array, scores: Array, most: int, overlap: float) -> list[int]:
    waiting = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while waiting.size and len(kept) < most:
        best, waiting = int(waiting[0]), waiting[1:]
        kept.append(best)
        waiting = waiting[_overlaps(corners[best], corners[waiting]) <= overlap]
    return kept


def _non_max_suppression(call: Call) -> Array:
    boxes, scores = call[0], call[1]
    most = int(call.scalar(2)) if call.has(2) else 0
    overlap = float(call.scalar(3)) if call.has(3) else 0.0
    is_centred = bool(call.integer("center_point_box", 0))
    found: list[tuple[int, int, int]] = []
    for batch in range(scores.shape[0]):
        corners = _corners(boxes[batch], is_centred)
        for label in range(scores.shape[1]):
            values = scores[batch, label]
            able = (
                np.flatnonzero(values > call.scalar(4)) if call.has(4) else np.arange(values.size)
            )
            kept = _suppressed(corners[able], values[able], most, overlap)
            found.extend((batch, label, int(able[place])) for place in kept)
    return np.array(found, np.int64).reshape(-1, 3)


OPERATORS: Table = {
    "TopK": moves(_top_k),
    "CumSum": computes(_scan(np.cumsum, 0)),
    "CumProd": computes(_scan(np.cumprod, 1)),
    "NonMaxSuppression": computes(_non_max_suppression),
}
