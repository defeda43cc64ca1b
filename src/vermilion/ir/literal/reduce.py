"""Reductions over axes, and what finds the place of the extreme."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Function, Row, Table, computes, versions

Array = NDArray[Any]
Axes = tuple[int, ...]
Reduce = Callable[[Array, Axes], Array]


def _axes(call: Call, rank: int, from_input: int) -> Axes:
    """Return the axes, which are an attribute before version `from_input`; none are all."""
    if call.version < from_input:
        given = call.integers("axes")
    else:
        given = call.ints(1) if call.has(1) else None
    if given:
        return tuple(call.axis(axis, rank) for axis in given)
    if call.integer("noop_with_empty_axes", 0) and call.version >= from_input:
        return ()
    return tuple(range(rank))


def _over(reduce: Reduce, from_input: int = 18) -> tuple[Row, ...]:
    def reduced(call: Call) -> Array:
        x = call[0]
        axes = _axes(call, x.ndim, from_input)
        result = reduce(x, axes)
        if not call.integer("keepdims", 1):
            result = result.reshape([n for axis, n in enumerate(x.shape) if axis not in axes])
        return result

    return computes(reduced)


def _kept(function: Callable[..., Array]) -> Reduce:
    """Return a reduction by numpy in the type of what is reduced."""
    return lambda x, axes: np.asarray(function(x, axis=axes, keepdims=True), x.dtype)


def _summed(before: Callable[[Array], Array], after: Callable[[Array], Array]) -> Reduce:
    def reduce(x: Array, axes: Axes) -> Array:
        found = after(np.sum(before(x), axis=axes, keepdims=True))
        return found if x.dtype.kind == "f" else np.asarray(found).astype(x.dtype)

    return reduce


def _same(x: Array) -> Array:
    return x


def mean(x: Array, axes: Axes) -> Array:
    """Return the mean with axes of 1; of nothing it is no number, and numpy warns of that."""
    count = math.prod(x.shape[axis] for axis in axes)
    total = np.sum(x, axis=axes, keepdims=True)
    if x.dtype.kind == "f":
        return np.asarray(total / np.float64(count))
    return np.asarray(np.trunc(total / count).astype(x.dtype))


def _extreme(function: Callable[..., Array], sign: int) -> Reduce:
    """Return the largest or smallest; of nothing, what the type has least or most."""

    def reduce(x: Array, axes: Axes) -> Array:
        if x.dtype == np.bool_:
            start: Any = sign < 0
        elif x.dtype.kind == "f":
            start = -sign * math.inf
        else:
            info = np.iinfo(x.dtype)
            start = info.min if sign > 0 else info.max
        return np.asarray(function(x, axis=axes, keepdims=True, initial=start), x.dtype)

    return reduce


def _log_sum_exp(x: Array, axes: Axes) -> Array:
    most = np.max(x, axis=axes, keepdims=True, initial=-math.inf)
    shift = np.where(np.isfinite(most), most, 0.0)
    return np.asarray(np.log(np.sum(np.exp(x - shift), axis=axes, keepdims=True)) + shift)


def _place(function: Callable[..., Array]) -> Function:
    def found(call: Call) -> Array:
        x = call[0]
        axis = call.axis(call.integer("axis", 0), x.ndim)
        if call.integer("select_last_index", 0):
            places = x.shape[axis] - 1 - function(np.flip(x, axis), axis=axis, keepdims=True)
        else:
            places = function(x, axis=axis, keepdims=True)
        places = np.asarray(places, np.int64)
        return places if call.integer("keepdims", 1) else np.squeeze(places, axis)

    return found


def _in_rows(call: Call) -> tuple[Array, int]:
    """Return the input as a matrix, as Softmax and its kin saw it before version 13."""
    x = call[0]
    axis = call.integer("axis", 1)
    at = x.ndim if axis == x.ndim else call.axis(axis, x.ndim)
    return x.reshape(math.prod(x.shape[:at]), math.prod(x.shape[at:])), 1


def _along_axis(call: Call) -> tuple[Array, int]:
    return call[0], call.axis(call.integer("axis", -1), call[0].ndim)


def softmax(x: Array, axis: int) -> Array:
    """Return the exponentials over their sum."""
    raised = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-math.inf))
    return np.asarray(raised / np.sum(raised, axis=axis, keepdims=True))


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - np.max(x, axis=axis, keepdims=True, initial=-math.inf)
    return np.asarray(shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True)))


def _hardmax(x: Array, axis: int) -> Array:
    place = np.expand_dims(np.argmax(x, axis=axis), axis)
    result = np.zeros_like(x)
    np.put_along_axis(result, place, 1, axis)
    return result


def _kin(function: Callable[[Array, int], Array]) -> tuple[Row, ...]:
    """Return Softmax or one like it: in rows before version 13, along one axis from there on."""

    def old(call: Call) -> Array:
        rows, axis = _in_rows(call)
        return function(rows, axis).reshape(call[0].shape) if rows.size else call[0]

    def new(call: Call) -> Array:
        x, axis = _along_axis(call)
        return function(x, axis) if x.size else x

    return versions((1, old), (13, new))


OPERATORS: Table = {
    "ReduceSum": _over(_kept(np.sum), from_input=13),
    "ReduceMean": _over(mean),
    "ReduceMax": _over(_extreme(np.max, 1)),
    "ReduceMin": _over(_extreme(np.min, -1)),
    "ReduceProd": _over(_kept(np.prod)),
    "ReduceL1": _over(_summed(np.abs, _same)),
    "ReduceL2": _over(_summed(np.square, np.sqrt)),
    "ReduceSumSquare": _over(_summed(np.square, _same)),
    "ReduceLogSum": _over(_summed(_same, np.log)),
    "ReduceLogSumExp": _over(_log_sum_exp),
    "ArgMax": computes(_place(np.argmax)),
    "ArgMin": computes(_place(np.argmin)),
    "Softmax": _kin(softmax),
    "LogSoftmax": _kin(_log_softmax),
    "Hardmax": _kin(_hardmax),
}
