"""Resize and Upsample: along one axis after the other, every mode of every version."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, Typed, computes, versions

Array = NDArray[Any]


@dataclass(frozen=True)
class _Axis:
    """One axis: its lengths before and after, the scale, and the part that is cropped."""

    length: int
    size: int
    scale: float
    start: float
    end: float


@dataclass(frozen=True)
class _How:
    """What the node's attributes say."""

    mode: str
    coordinates: str
    nearest: str
    cubic: float
    excludes_outside: bool
    antialias: bool
    extrapolated: float


def _coordinates(how: _How, axis: _Axis, kind: type[np.floating[Any]]) -> Array:
    """Return where each new element lies among the old ones.

    Source: ONNX Resize-19, `coordinate_transformation_mode`.
    """
    x = np.arange(axis.size).astype(kind)
    half = kind(0.5)
    scale = kind(axis.scale)
    match how.coordinates:
        case "asymmetric":
            return np.asarray(x / scale)
        case "half_pixel":
            return np.asarray((x + half) / scale - half)
        case "pytorch_half_pixel":
            return np.asarray((x + half) / scale - half) if axis.size > 1 else np.zeros_like(x)
        case "tf_half_pixel_for_nn":
            return np.asarray((x + half) / scale)
        case "half_pixel_symmetric":
            adjustment = kind(axis.size) / (scale * kind(axis.length))
            offset = kind(axis.length) / kind(2) * (kind(1) - adjustment)
            return np.asarray(offset + (x + half) / scale - half)
        case "align_corners":
            if axis.size == 1:
                return np.zeros_like(x)
            return np.asarray(x * kind(axis.length - 1) / kind(axis.size - 1))
        case "tf_crop_and_resize":
            last, start, end = kind(axis.length - 1), kind(axis.start), kind(axis.end)
            if axis.size == 1:
                return np.asarray(np.full_like(x, half * (start + end) * last))
            return np.asarray(start * last + x * (end - start) * last / kind(axis.size - 1))
    raise ValueError(f"`coordinate_transformation_mode` {how.coordinates} is not one of Resize")


# A coordinate of 13.5 may come out as 13.499999 in float32: what is that near to a half is one.
_HALF = 0.5 + 1e-6


def _nearest(how: _How, axis: _Axis) -> Array:
    """Return the nearest old elements. In float32, which scales are written in.

    A third is no float32: in float64 the third element would lie at 2.9999999, not at 3.
    """
    x = _coordinates(how, axis, np.float32)
    match how.nearest:
        case "round_prefer_floor":
            found = np.ceil(x.astype(np.float64) - _HALF)
        case "round_prefer_ceil":
            found = np.floor(x.astype(np.float64) + _HALF)
        case "floor":
            found = np.floor(x)
        case "ceil":
            found = np.ceil(x)
        case "simple":  # before version 11 there was no choice
            found = np.ceil(x) if axis.scale < 1 else np.floor(x)
        case _:
            raise ValueError(f"`nearest_mode` {how.nearest} is not one of Resize")
    return np.clip(found.astype(np.int64), 0, axis.length - 1)


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = a * (((distance - 5) * distance + 8) * distance - 4)
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _weights(how: _How, axis: _Axis, x: Array) -> tuple[Array, Array]:
    """Return for each new element which old ones it is made of, and their weights."""
    stretch = min(1.0, axis.scale) if how.antialias else 1.0
    reach = (2 if how.mode == "cubic" else 1) / stretch
    first = np.floor(x - reach).astype(np.int64) + 1
    taps = first[:, None] + np.arange(math.ceil(2 * reach) + (0 if stretch == 1.0 else 1))
    distance = np.abs(x[:, None] - taps) * stretch
    weights = _cubic(distance, how.cubic) if how.mode == "cubic" else np.maximum(0, 1 - distance)
    if how.excludes_outside:
        weights = np.where((taps >= 0) & (taps < axis.length), weights, 0.0)
    if how.excludes_outside or stretch != 1.0 or how.antialias:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(taps, 0, axis.length - 1), weights


def _along(x: Array, at: int, how: _How, axis: _Axis) -> Array:
    if how.mode == "nearest":
        return np.take(x, _nearest(how, axis), at)
    coordinates = _coordinates(how, axis, np.float64)
    if how.mode == "linear" and not how.antialias:
        # What lies outside of the image is as its border, whatever the weights.
        coordinates = np.clip(coordinates, 0, axis.length - 1)
    taps, weights = _weights(how, axis, coordinates)
    shape = [-1 if place == at else 1 for place in range(x.ndim)]
    result = np.zeros((*x.shape[:at], axis.size, *x.shape[at + 1 :]))
    for tap in range(taps.shape[1]):
        weight = weights[:, tap].reshape(shape)
        part = np.take(x, taps[:, tap], at)
        # An infinity that has no weight has no part.
        result += np.where(weight == 0, 0.0, part * weight)
    return result


def _resized(x: Array, how: _How, axes: dict[int, _Axis]) -> Array:
    dtype = x.dtype
    result = x
    outside = np.zeros((1,) * x.ndim, np.bool_)
    for at, axis in axes.items():
        crops = how.coordinates == "tf_crop_and_resize"
        if axis.size == axis.length and axis.scale == 1.0 and not crops:
            continue
        if axis.length == 0 or axis.size == 0:
            shape = list(result.shape)
            shape[at] = axis.size
            return np.zeros(shape, dtype)
        result = _along(result, at, how, axis)
        if crops:
            places = _coordinates(how, axis, np.float64)
            beyond = (places < 0) | (places > axis.length - 1)
            outside = outside | beyond.reshape([-1 if k == at else 1 for k in range(x.ndim)])
    if outside.any():
        result = np.where(outside, how.extrapolated, result)
    if dtype.kind in "iu" and result.dtype != dtype:
        info = np.iinfo(dtype)
        result = np.clip(np.trunc(result), info.min, info.max)
    return result.astype(dtype)


def _upsample(call: Call) -> Array:
    x = call[0]
    if call.version >= 9:
        scales = [float(value) for value in call[1].reshape(-1)]
    else:
        written = call.node.attributes.get("scales")
        if written is None:
            raise call.unsupported("Upsample of version 1 is not interpreted")
        scales = list(written.as_floats())
    mode = {"bilinear": "linear"}.get(call.text("mode", "nearest"), call.text("mode", "nearest"))
    how = _How(mode, "asymmetric", "simple", -0.75, False, False, 0.0)
    return _resized(
        x, how, _by_scales(x, list(range(x.ndim)), scales, [0.0] * x.ndim, [1.0] * x.ndim, how)
    )


def _by_scales(
    x: Array,
    axes: list[int],
    scales: list[float],
    starts: list[float],
    ends: list[float],
    how: _How,
) -> dict[int, _Axis]:
    if len(scales) != len(axes):
        raise ValueError(f"{len(scales)} scales for {len(axes)} axes")
    if min(scales, default=1.0) <= 0:
        raise ValueError("a scale is not above 0")
    found = {}
    for at, scale, start, end in zip(axes, scales, starts, ends, strict=True):
        # The length in float32 as well: 0.6 as a float32 times 5 is 3 there.
        span = (
            np.float32(end) - np.float32(start)
            if how.coordinates == "tf_crop_and_resize"
            else np.float32(1)
        )
        size = int(np.floor(np.float32(x.shape[at]) * span * np.float32(scale)))
        found[at] = _Axis(x.shape[at], size, scale, start, end)
    return found


def _by_sizes(
    call: Call, x: Array, axes: list[int], sizes: list[int], starts: list[float], ends: list[float]
) -> dict[int, _Axis]:
    policy = call.text("keep_aspect_ratio_policy", "stretch")
    lengths = [x.shape[at] for at in axes]
    ratios = [size / max(1, length) for size, length in zip(sizes, lengths, strict=True)]
    if policy != "stretch":
        ratio = min(ratios) if policy == "not_larger" else max(ratios)
        ratios = [ratio] * len(ratios)
        # Halves are rounded up. Source: ONNX Resize-19, `round_int`.
        sizes = [math.floor(ratio * length + 0.5) for length in lengths]
    return {
        at: _Axis(x.shape[at], size, ratio, start, end)
        for at, size, ratio, start, end in zip(axes, sizes, ratios, starts, ends, strict=True)
    }


def _resize_10(call: Call) -> Array:
    x = call[0]
    scales = [float(value) for value in call[1].reshape(-1)]
    how = _How(call.text("mode", "nearest"), "asymmetric", "simple", -0.75, False, False, 0.0)
    rank = x.ndim
    return _resized(
        x, how, _by_scales(x, list(range(rank)), scales, [0.0] * rank, [1.0] * rank, how)
    )


def _resize(call: Call) -> Typed:
    x = call[0]
    given = call.integers("axes")
    axes = list(range(x.ndim)) if given is None else [call.axis(a, x.ndim) for a in given]
    how = _How(
        call.text("mode", "nearest"),
        call.text("coordinate_transformation_mode", "half_pixel"),
        call.text("nearest_mode", "round_prefer_floor"),
        call.number("cubic_coeff_a", -0.75),
        bool(call.integer("exclude_outside", 0)),
        bool(call.integer("antialias", 0)),
        call.number("extrapolation_value", 0.0),
    )
    starts, ends = [0.0] * len(axes), [1.0] * len(axes)
    if how.coordinates == "tf_crop_and_resize":
        region = [float(value) for value in call[1].reshape(-1)]
        starts, ends = region[: len(axes)], region[len(axes) :]
    if call.has(2) and call[2].size:
        scales = [float(value) for value in call[2].reshape(-1)]
        found = _by_scales(x, axes, scales, starts, ends, how)
    else:
        found = _by_sizes(call, x, axes, call.ints(3), starts, ends)
    return Typed(_resized(x, how, found), call.type(0))


OPERATORS: Table = {
    "Resize": versions((10, _resize_10), (11, _resize)),
    "Upsample": computes(_upsample),
}
