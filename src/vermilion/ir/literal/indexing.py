"""Operators that pick or place elements by indices, which are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, moves

Array = NDArray[Any]

# How elements that are placed are joined with what is there.
_JOINED: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def checked(call: Call, indices: Array, length: int, axis: int) -> Array:
    """Return indices counted from the front.

    Raises: ModelError where one lies outside of `length` elements.
    """
    places = indices.astype(np.int64)
    outside = (places < -length) | (places >= length)
    if outside.any():
        first = int(places[outside].reshape(-1)[0])
        raise call.error(
            f"indices element out of data bounds, idx={first} must be within the inclusive range "
            f"[{-length},{length - 1}] of axis {axis}"
        )
    return np.where(places < 0, places + length, places)


def _gather(call: Call) -> Array:
    x = call[0]
    axis = call.axis(call.integer("axis", 0), x.ndim)
    return np.take(x, checked(call, call[1], x.shape[axis], axis), axis)


def _along(call: Call, indices: Array, shape: tuple[int, ...], axis: int) -> tuple[Array, ...]:
    """Return the index of every element, of which only the one along `axis` is given."""
    if indices.ndim != len(shape):
        raise call.error(f"its indices have {indices.ndim} dimensions, its data {len(shape)}")
    grid: list[Array] = list(np.indices(indices.shape, sparse=True))
    grid[axis] = checked(call, indices, shape[axis], axis)
    return tuple(np.broadcast_arrays(*grid)) if grid else ()


def _gather_elements(call: Call) -> Array:
    x = call[0]
    axis = call.axis(call.integer("axis", 0), x.ndim)
    return x[_along(call, call[1], x.shape, axis)]


def _tuples(call: Call, indices: Array, shape: tuple[int, ...], batched: int) -> tuple[Array, ...]:
    """Return the leading indices that rows of `indices` name, behind those of the batch."""
    count = indices.shape[-1]
    if count > len(shape) - batched:
        raise call.error(f"its indices name {count} axes of {len(shape) - batched}")
    grid = np.indices(indices.shape[:-1], sparse=True)[:batched]
    named = (
        checked(call, indices[..., at], shape[batched + at], batched + at) for at in range(count)
    )
    return (*grid, *named)


def _gather_nd(call: Call) -> Array:
    x, batched = call[0], call.integer("batch_dims", 0)
    return x[_tuples(call, call[1], x.shape, batched)]


def _placed(call: Call, where_to: tuple[Array, ...], updates: Array) -> Array:
    result = call[0].copy()
    how = call.text("reduction", "none")
    if how == "none":
        result[where_to] = updates
    elif how in _JOINED:
        join: Any = _JOINED[how]
        join.at(result, where_to, updates)
    else:
        raise call.error(f"the reduction `{how}` is not one of the operator")
    return result


def _scatter_elements(call: Call) -> Array:
    x = call[0]
    axis = call.axis(call.integer("axis", 0), x.ndim)
    if call[1].shape != call[2].shape:
        raise call.error("its indices and its updates differ in shape")
    return _placed(call, _along(call, call[1], x.shape, axis), call[2])


def _scatter_nd(call: Call) -> Array:
    wanted = call[1].shape[:-1] + call[0].shape[call[1].shape[-1] :]
    if call[2].shape != wanted:
        raise call.error(f"its updates have the shape {call[2].shape}, and have to have {wanted}")
    return _placed(call, _tuples(call, call[1], call[0].shape, 0), call[2])


def _tensor_scatter(call: Call) -> Array:
    cache, update = call[0].copy(), call[1]
    axis = call.axis(call.integer("axis", -2), cache.ndim)
    starts = call[2].astype(np.int64) if call.has(2) else np.zeros(cache.shape[0], np.int64)
    length = cache.shape[axis]
    places = starts[:, None] + np.arange(update.shape[axis])
    if call.text("mode", "linear") == "circular":
        places = places % length
    elif places.size and (places.min() < 0 or places.max() >= length):
        raise call.error(f"it writes behind the {length} rows of its cache")
    rows = np.moveaxis(cache, axis, 1)
    rows[np.arange(cache.shape[0])[:, None], places] = np.moveaxis(update, axis, 1)
    return cache


def _one_hot(call: Call) -> Array:
    indices, depth, values = call[0], int(call.scalar(1)), call[2]
    rank = indices.ndim + 1
    axis = call.axis(call.integer("axis", -1), rank)
    # An index out of range gives a row of the off value.
    places = np.trunc(indices.astype(np.float64)) if indices.dtype.kind == "f" else indices
    places = places.astype(np.int64)
    places = np.where(places < 0, places + depth, places)
    grid = np.arange(depth).reshape([-1 if at == axis else 1 for at in range(rank)])
    return np.asarray(
        np.where(np.expand_dims(places, axis) == grid, values[1], values[0]).astype(values.dtype)
    )


def _reverse_sequence(call: Call) -> Array:
    x, lengths = call[0], call[1].astype(np.int64)
    batch_axis, time_axis = call.integer("batch_axis", 1), call.integer("time_axis", 0)
    steps = np.arange(x.shape[time_axis])[:, None]
    places = np.where(steps < lengths, lengths - 1 - steps, steps)
    rows = np.moveaxis(x, (time_axis, batch_axis), (0, 1))
    return np.moveaxis(rows[places, np.arange(lengths.size)], (0, 1), (time_axis, batch_axis))


def _compress(call: Call) -> Array:
    axis = call.node.attributes.get("axis")
    x = call[0].reshape(-1) if axis is None else call[0]
    at = 0 if axis is None else call.axis(axis.as_int(), x.ndim)
    return np.compress(call[1][: x.shape[at]], x, at)


def _non_zero(call: Call) -> Array:
    x = call[0]
    if x.ndim == 0:
        return np.zeros((0, int(bool(x))), np.int64)
    return np.array(np.nonzero(x), np.int64).reshape(x.ndim, -1)


def _unique(call: Call) -> tuple[Array, ...]:
    axis = call.node.attributes.get("axis")
    x = call[0].reshape(-1) if axis is None else call[0]
    at = 0 if axis is None else call.axis(axis.as_int(), x.ndim)
    found, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=at
    )
    inverse = inverse.reshape(-1)
    if not call.integer("sorted", 1):
        order = np.argsort(first, kind="stable")
        found, first, counts = np.take(found, order, at), first[order], counts[order]
        inverse = np.argsort(order, kind="stable")[inverse]
    return found, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64)


def _center_crop_pad(call: Call) -> Array:
    x, sizes = call[0], call.ints(1)
    axes = call.integers("axes") or list(range(x.ndim))
    for axis, size in zip(axes, sizes, strict=True):
        at = call.axis(axis, x.ndim)
        missing = size - x.shape[at]
        before = abs(missing) // 2
        if missing < 0:
            x = np.take(x, np.arange(before, before + size), at)
        elif missing:
            pads = [(0, 0)] * x.ndim
            pads[at] = (before, missing - before)
            x = np.pad(x, pads)
    return x


OPERATORS: Table = {
    "Gather": moves(_gather),
    "GatherElements": moves(_gather_elements),
    "GatherND": moves(_gather_nd),
    "Scatter": moves(_scatter_elements),
    "ScatterElements": moves(_scatter_elements),
    "ScatterND": moves(_scatter_nd),
    "TensorScatter": moves(_tensor_scatter),
    "OneHot": moves(_one_hot),
    "ReverseSequence": moves(_reverse_sequence),
    "Compress": moves(_compress),
    "NonZero": moves(_non_zero),
    "Unique": moves(_unique),
    "CenterCropPad": moves(_center_crop_pad),
}
