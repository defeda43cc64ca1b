"""Integers that are decided by numbers: judged at the scores that decide them.

A class number that is off by one is no small error, and a code of a quantizer that is off by one
may be no error at all. So where an integer output differs from the expected one, the numbers that
enter its operator say whether both are right within the roundings of the format: a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from vermilion.ir.arrays import Array
from vermilion.ir.attributes import integer
from vermilion.ir.opset import constant_of, is_operator

# Ties are as wide as this, of the largest score in the tensor, in float32: sums in another order.
TIE = 2.0**-18

# Steps of what DynamicQuantizeLinear gives.
_LEVELS = 255

Decided = Callable[[ir.Node, Mapping[str, Array], Array, Array, float], "Array | None"]


def deciders(node: ir.Node | None) -> tuple[str, ...]:
    """Return the names of the tensors that decide a node's integers, none where it is no such."""
    if node is None or node.op_type not in _DECIDED or not is_operator(node, node.op_type):
        return ()
    return tuple(
        str(value.name)
        for value in node.inputs[:3]
        if value is not None and value.name and constant_of(value) is None
    )


def is_tie(
    node: ir.Node, scores: Mapping[str, Array], expected: Array, found: Array, width: float = TIE
) -> bool:
    """Say whether every place where `found` is another integer is a tie of its scores.

    `scores` has the tensors of `deciders` and the constants that the node reads; `width` is
    relative to the largest score.
    """
    tied = _DECIDED[node.op_type](node, scores, expected, found, width)
    return tied is not None and bool(np.all(tied | (expected == found)))


def _score(node: ir.Node, scores: Mapping[str, Array], index: int) -> Array | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None or not value.name:
        return None
    constant = constant_of(value)
    array = constant.numpy() if constant is not None else scores.get(str(value.name))
    return None if array is None else np.asarray(array)


def _extreme(
    node: ir.Node, scores: Mapping[str, Array], expected: Array, found: Array, width: float
) -> Array | None:
    data = _score(node, scores, 0)
    if data is None or not data.ndim:
        return None
    axis = integer(node, "axis", 0) % data.ndim
    wide = data.astype(np.float64)
    places = (found, expected)
    if not integer(node, "keepdims", 1):
        places = (np.expand_dims(found, axis), np.expand_dims(expected, axis))
    if min(p.min(initial=0) for p in places) < 0 or places[0].max(initial=0) >= data.shape[axis]:
        return None
    mine, right = (np.take_along_axis(wide, place, axis) for place in places)
    tied = np.abs(mine - right) <= width * _largest(wide)
    return tied.reshape(expected.shape)


def _chosen(
    node: ir.Node, scores: Mapping[str, Array], expected: Array, found: Array, width: float
) -> Array | None:
    """Places of TopK: elements that are equal within the roundings may stand in either order."""
    data = _score(node, scores, 0)
    if data is None or not data.ndim or found.shape != expected.shape:
        return None
    axis = integer(node, "axis", -1) % data.ndim
    ends = min(found.min(initial=0), expected.min(initial=0)), found.max(initial=0)
    if ends[0] < 0 or ends[1] >= data.shape[axis] or _has_twice(found, axis):
        return None
    wide = data.astype(np.float64)
    mine, right = (np.take_along_axis(wide, place, axis) for place in (found, expected))
    tied: Array = np.abs(mine - right) <= width * _largest(wide)
    return tied


def _has_twice(places: Array, axis: int) -> bool:
    return bool((np.diff(np.sort(places, axis), axis=axis) == 0).any())


def _quantized(
    node: ir.Node, scores: Mapping[str, Array], expected: Array, found: Array, width: float
) -> Array | None:
    data, scale = _score(node, scores, 0), _score(node, scores, 1)
    if data is None or scale is None or integer(node, "block_size", 0):
        return None
    zero = _score(node, scores, 2)
    zero = np.zeros_like(scale, np.float64) if zero is None else zero.astype(np.float64)
    scale = scale.astype(np.float64)
    if scale.ndim == 1 and scale.size > 1:
        axis = integer(node, "axis", 1) % data.ndim
        shape = [-1 if i == axis else 1 for i in range(data.ndim)]
        scale, zero = scale.reshape(shape), zero.reshape(shape)
    a, b = expected.astype(np.float64), found.astype(np.float64)
    border = (np.minimum(a, b) + 0.5 - zero) * scale
    wide = data.astype(np.float64)
    near = np.abs(wide - border) <= np.maximum(width * np.abs(wide), width * scale)
    tied: Array = (np.abs(a - b) == 1) & near
    return tied


def _dynamically_quantized(
    node: ir.Node, scores: Mapping[str, Array], expected: Array, found: Array, width: float
) -> Array | None:
    """Codes and zero point of DynamicQuantizeLinear, whose scale follows from the numbers too.

    A zero point that is a tie moves all codes by one: they are right by one of both.
    """
    data = _score(node, scores, 0)
    if data is None or not np.isfinite(data).all():
        return None
    x = data.astype(np.float64)
    low, high = min(0.0, float(x.min(initial=0.0))), max(0.0, float(x.max(initial=0.0)))
    scale = (high - low) / _LEVELS or 1.0
    exact = -low / scale
    below = np.floor(exact)
    is_tied = bool(abs(exact - below - 0.5) <= width * max(1.0, exact))
    points = [below, below + 1] if is_tied else [np.rint(exact)]
    apart = np.abs(expected.astype(np.float64) - found.astype(np.float64))
    tied = np.zeros(found.shape, np.bool_)
    if not found.ndim:
        tied |= np.isin(found, points)
    if found.shape == x.shape:
        steps = x / scale
        room = 0.5 + np.maximum(width * np.abs(steps), width)
        right = [np.abs(np.clip(steps + p, 0, _LEVELS) - found) <= room for p in points]
        tied |= max(right, key=np.count_nonzero) & (apart <= 1)
    return tied


def _compared(
    node: ir.Node, scores: Mapping[str, Array], expected: Array, found: Array, width: float
) -> Array | None:
    a, b = _score(node, scores, 0), _score(node, scores, 1)
    if a is None or b is None or a.dtype.kind not in "fV":
        return None
    x, y = a.astype(np.float64), b.astype(np.float64)
    tied: Array = np.abs(x - y) <= width * max(_largest(x), _largest(y))
    return np.broadcast_to(tied, expected.shape)


def _whole(
    node: ir.Node, scores: Mapping[str, Array], expected: Array, found: Array, width: float
) -> Array | None:
    """Cast of floats to integers: a number that lies beside a whole one."""
    data = _score(node, scores, 0)
    if data is None or data.dtype.kind not in "fV":
        return None
    wide = data.astype(np.float64)
    near = np.abs(wide - np.round(wide)) <= width * _largest(wide)
    apart = np.abs(expected.astype(np.float64) - found.astype(np.float64)) == 1
    tied: Array = near & apart
    return tied


def _largest(array: Array) -> float:
    finite = np.abs(array[np.isfinite(array)])
    return float(finite.max(initial=0.0))


_DECIDED: Mapping[str, Decided] = {
    "ArgMax": _extreme,
    "ArgMin": _extreme,
    "TopK": _chosen,
    "QuantizeLinear": _quantized,
    "DynamicQuantizeLinear": _dynamically_quantized,
    "Greater": _compared,
    "GreaterOrEqual": _compared,
    "Less": _compared,
    "LessOrEqual": _compared,
    "Cast": _whole,
}
