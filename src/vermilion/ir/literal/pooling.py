"""Poolings over windows and over whole images."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, computes
from vermilion.ir.literal.reduce import mean
from vermilion.ir.literal.windows import Windows, find_windows

Array = NDArray[Any]


def _windows(call: Call, x: Array) -> Windows:
    kernel = call.integers("kernel_shape")
    if kernel is None or x.ndim < 3:
        raise call.error(f"a pooling of {x.ndim} dimensions with `kernel_shape` {kernel}")
    return find_windows(call, x.shape[2:], kernel, pools=True)


def _least(x: Array) -> Any:
    return -math.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min


def _max_pool(call: Call) -> Any:
    x = call[0]
    windows = _windows(call, x)
    padded = windows.padded(x, _least(x))
    result: Array | None = None
    for _, places in windows.taps():
        tap = padded[places]
        result = tap.copy() if result is None else np.maximum(result, tap)
    return (result, _places(call, x, windows)) if call.reads(1) else result


def _places(call: Call, x: Array, windows: Windows) -> Array:
    """Return for each window where the first of its largest lies in the whole tensor."""
    # Rows first within an image, or columns first; images one after the other.
    order: Literal["F", "C"] = "F" if call.integer("storage_order", 0) else "C"
    size = math.prod(windows.image)
    numbers = np.arange(size).reshape(windows.image, order=order)
    own = windows.unfolded(windows.padded(numbers[None, None], -1))
    values = windows.unfolded(windows.padded(x, _least(x)))
    taps = math.prod(windows.kernel)
    own = own.reshape(1, 1, taps, *windows.counts)
    values = values.reshape(*x.shape[:2], taps, *windows.counts)
    # What lies in the border never wins, not even over the least of all values.
    rank = np.where(own >= 0, values, _least(x))
    is_first = (rank == rank.max(axis=2, keepdims=True)) & (own >= 0)
    best = np.argmax(is_first, axis=2)[:, :, None]
    found = np.take_along_axis(np.broadcast_to(own, values.shape), best, 2)[:, :, 0]
    images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *[1] * len(windows.counts))
    return np.asarray((found + images * size).astype(np.int64))


def _sums(padded: Array, windows: Windows) -> Array:
    total = np.zeros(padded.shape[:2] + windows.counts)
    for _, places in windows.taps():
        total += padded[places]
    return total


def _average_pool(call: Call) -> Array:
    return average_pooled(call, call[0])


def average_pooled(call: Call, x: Array) -> Array:
    """Return the means of the windows that the node's attributes describe."""
    windows = _windows(call, x)
    total = _sums(windows.padded(x, 0.0), windows)
    # How many of each window's places count: those of the image, or those of its border too,
    # but never what lies behind the border.
    counted = windows.padded(np.ones((1, 1, *windows.image)), 0.0)
    if call.integer("count_include_pad", 0):
        counted[...] = 0.0
        inner = tuple(
            slice(0, b + i + a)
            for b, i, a in zip(windows.before, windows.image, windows.after, strict=True)
        )
        counted[(slice(None), slice(None), *inner)] = 1.0
    return total / _sums(counted, windows)


def _lp_pool(call: Call) -> Array:
    x, p = call[0], _order(call)
    windows = _windows(call, x)
    return _root(_sums(windows.padded(np.abs(x) ** p, 0.0), windows), p)


def _order(call: Call) -> float:
    # Version 1 has a float here, all later ones a whole number.
    return call.number("p", 2.0) if call.version < 2 else call.integer("p", 2)


def _root(total: Array, p: float) -> Array:
    if p == 1:
        return total
    return np.sqrt(total) if p == 2 else total ** (1.0 / p)


def _spatial(x: Array) -> tuple[int, ...]:
    return tuple(range(2, x.ndim))


def _global_average_pool(call: Call) -> Array:
    return mean(call[0], _spatial(call[0]))


def _global_max_pool(call: Call) -> Array:
    return np.asarray(np.max(call[0], axis=_spatial(call[0]), keepdims=True))


def _global_lp_pool(call: Call) -> Array:
    p = _order(call)
    return _root(np.sum(np.abs(call[0]) ** p, axis=_spatial(call[0]), keepdims=True), p)


def _max_unpool(call: Call) -> Array:
    x, indices = call[0], call[1].astype(np.int64)
    if call.has(2):
        shape = tuple(call.ints(2))
    else:
        rank = x.ndim - 2
        kernel = call.integers("kernel_shape") or []
        strides = call.integers("strides") or [1] * rank
        pads = call.integers("pads") or [0] * (2 * rank)
        sizes = (
            (x.shape[2 + at] - 1) * strides[at] + kernel[at] - pads[at] - pads[at + rank]
            for at in range(rank)
        )
        shape = (*x.shape[:2], *sizes)
    result = np.zeros(math.prod(shape))
    if indices.size and (indices.min() < 0 or indices.max() >= result.size):
        raise call.error(f"an index is not in a tensor of {result.size} elements")
    result[indices.reshape(-1)] = x.reshape(-1)
    return result.reshape(shape)


OPERATORS: Table = {
    "MaxPool": computes(_max_pool),
    "AveragePool": computes(_average_pool),
    "LpPool": computes(_lp_pool),
    "GlobalAveragePool": computes(_global_average_pool),
    "GlobalMaxPool": computes(_global_max_pool),
    "GlobalLpPool": computes(_global_lp_pool),
    "MaxUnpool": computes(_max_unpool),
}
