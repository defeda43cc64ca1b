"""Resize and Upsample of images by tables of source pixels and weights.

Source of every formula: ONNX Resize-19.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.emit.resize import ResizeSpec
from vermilion.codegen.emit.resize_table import HALF, ResizeTableSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import CHANNELS_LAST, Border, Lowering, identity, operations_of
from vermilion.codegen.lower.geometry import as_image, channels_last_order
from vermilion.codegen.lower.reduction import image_of
from vermilion.codegen.tensor import STORAGE_BYTES, View, allocate, weight
from vermilion.ir.attributes import integer, integers, number, text
from vermilion.ir.formula import formula
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_known, is_one, same

Array = NDArray[Any]


def check_resize(node: ir.Node) -> str:
    """Say why a Resize is not generated, empty if it is."""
    data, result = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    if data is None or result is None or len(data) not in (3, 4) or data[:2] != result[:2]:
        return "Resize that is not over signals, or the height and width of images"
    mode = text(node, "mode", "nearest")
    if mode not in ("nearest", "linear", "cubic"):
        return f"Resize with mode {mode}"
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    if mode != "nearest" and dtype is not None and not dtype.is_floating_point():
        return f"Resize of integers with mode {mode}"
    if _transform(node) not in _TO_SOURCE:
        return "Resize with crop"
    if text(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        return "Resize that keeps the ratio of the sides"
    if integer(node, "antialias", 0):
        return "Resize with antialias"
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    if scales is not None and scales.name and constant_of(scales) is None:
        return "Resize with scales that are not constant"
    if not _has_tables(node) and mode == "cubic":
        return "Resize with mode cubic where a size is dynamic"
    if _transform(node) == "align_corners":
        # The specification divides by the size before rounding, ONNX Runtime by the one after.
        for axis, scale in _given_scales(node).items():
            exact = scale * (data[axis] if is_known(data[axis]) else 1)
            if not math.isclose(exact, round(exact), rel_tol=1e-5):
                return "Resize with aligned corners to a size that is rounded"
    return ""


def _has_tables(node: ir.Node) -> bool:
    """Say whether the sides of the images are known before a run; how many they are need not be."""
    sides = (static_shape(value) or () for value in (node.inputs[0], node.outputs[0]))
    return all(is_known(size) for shape in sides for size in shape[1:])


def repeats(node: ir.Node) -> tuple[int, int] | None:
    """Return how often a Resize repeats each row and column, None where it does more than that."""
    data, result = static_shape(node.inputs[0]) or (), static_shape(node.outputs[0]) or ()
    if text(node, "mode", "nearest") != "nearest":
        return None
    transform = _transform(node)
    rounds = text(node, "nearest_mode", "round_prefer_floor")
    by_floor = transform == "asymmetric" and rounds == "floor"
    by_middle = transform in ("half_pixel", "pytorch_half_pixel") and rounds.startswith("round")
    factors = [formula(b // a).constant for a, b in zip(data[2:], result[2:], strict=True)]
    exact = [f is not None and same(a * f, b)
             for a, b, f in zip(data[2:], result[2:], factors, strict=True)]  # fmt: skip
    if len(data) != 4 or not all(exact) or not (by_floor or by_middle):
        return None
    return factors[0] or 1, factors[1] or 1


def _lower_repeated(lowering: Lowering, node: ir.Node, factors: tuple[int, int]) -> None:
    """Write a Resize that repeats rows and columns: each of them becomes two dimensions."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.channels_last(data, Border())
    target = lowering.output(node.outputs[0], CHANNELS_LAST)
    n, c, h, w = source.shape
    parts = (n, c, h, factors[0], w, factors[1])
    wide, place = source.reshaped((n, c, h, 1, w, 1)), target.reshaped(parts)
    assert wide is not None and place is not None, "cutting needs no copy"  # noqa: PT018
    lowering.add(map_step([wide.broadcast(parts)], [place], [identity(wide)], [str(node.name)]))


@dataclass(frozen=True)
class Axis:
    """One axis: sizes, and the factor between them."""

    source: int
    target: int
    scale: float


def _half_pixel(x: Array, axis: Axis) -> Array:
    return (x + 0.5) / axis.scale - 0.5


def _pytorch_half_pixel(x: Array, axis: Axis) -> Array:
    return _half_pixel(x, axis) if axis.target > 1 else np.zeros_like(x)


def _align_corners(x: Array, axis: Axis) -> Array:
    return x * (axis.source - 1) / (axis.target - 1) if axis.target > 1 else np.zeros_like(x)


def _asymmetric(x: Array, axis: Axis) -> Array:
    return x / axis.scale


_TO_SOURCE = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "align_corners": _align_corners,
    "asymmetric": _asymmetric,
}


def _nearest(x: Array, mode: str) -> Array:
    match mode:
        case "floor":
            return np.floor(x)
        case "ceil":
            return np.ceil(x)
        case "round_prefer_ceil":
            return np.floor(x + HALF)
        case _:
            return np.ceil(x - HALF)


def table(node: ir.Node, axis: Axis) -> tuple[Array, Array]:
    """Return source positions and weights. Shapes: both (target, taps)."""
    mode = text(node, "mode", "nearest")
    transform = _transform(node)
    # In float32, as ONNX Runtime does: coordinates that should be whole are so in both or neither.
    x = _TO_SOURCE[transform](np.arange(axis.target, dtype=np.float32), axis).astype(np.float64)
    if mode == "nearest":
        at = _nearest(x, text(node, "nearest_mode", "round_prefer_floor"))
        return _inside(at[:, None], axis), np.ones((axis.target, 1))
    base = np.floor(x)
    t = x - base
    if mode == "linear":
        at = np.stack([base, base + 1], 1)
        return _inside(at, axis), np.stack([1 - t, t], 1)
    a = number(node, "cubic_coeff_a", -0.75)
    at = np.stack([base - 1, base, base + 1, base + 2], 1)
    weights = np.stack([_cubic(abs(t - offset), a) for offset in (-1, 0, 1, 2)], 1)
    if integer(node, "exclude_outside", 0):
        weights = np.where((at >= 0) & (at < axis.source), weights, 0.0)
        weights /= weights.sum(1, keepdims=True)
    return _inside(at, axis), weights


def _cubic(d: Array, a: float) -> Array:
    near = (a + 2) * d**3 - (a + 3) * d**2 + 1
    far = a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _inside(at: Array, axis: Axis) -> Array:
    return np.clip(at, 0, axis.source - 1).astype(np.int64)


def lower_resize(lowering: Lowering, node: ir.Node) -> None:
    """Write a Resize as one kernel and its tables."""
    factors = None if _has_tables(node) else repeats(node)
    if factors is not None:
        _lower_repeated(lowering, node, factors)
        return
    data = node.inputs[0]
    assert data is not None
    rank = len(static_shape(data) or ())
    source = image_of(lowering, data)
    target = as_image(lowering.output(node.outputs[0], channels_last_order(rank)))
    n, c, _, _ = source.shape
    tables = [_tables(lowering, node, source, target, dimension) for dimension in (2, 3)]
    (y_at, y_weight, taps_y), (x_at, x_weight, taps_x) = tables
    spec = ResizeSpec(
        source.storage, n, c, target.shape[2], target.shape[3], taps_y, taps_x,
        source.strides[0], target.strides[0], target.strides[2], target.strides[3],
    )  # fmt: skip
    lowering.add(
        Step(
            spec, (source, target, y_at, y_weight, x_at, x_weight), (target,),
            (str(node.name),), operations_of([node]),
        )
    )  # fmt: skip


def _tables(
    lowering: Lowering, node: ir.Node, source: View, target: View, dimension: int
) -> tuple[View, View, int]:
    """Return offsets and weights of one axis, and how many there are for each pixel.

    They are constants where the sizes are known, and computed at a run's begin where they are not.
    """
    before, after = source.shape[dimension], target.shape[dimension]
    stride_bytes = source.strides[dimension] * STORAGE_BYTES[source.storage]
    label = f"{node.name}/resize/{dimension}"
    axis = dimension - 4 + len(static_shape(node.inputs[0]) or ())
    scale = _given_scales(node).get(axis)
    found: tuple[Array, Array] | None = None
    if is_one(before) and is_one(after):  # as of the row that a signal is
        found = np.zeros((1, 1), np.int64), np.ones((1, 1))
    elif is_known(before) and is_known(after) and is_known(stride_bytes):
        found = table(node, Axis(before, after, scale or float(after) / before))
    if found is not None:
        at, weights = found
        offsets = weight(f"{label}/at", at * stride_bytes, "i64")
        return offsets, weight(f"{label}/weights", weights.astype(np.float32), "f32"), at.shape[1]
    mode, transform = text(node, "mode", "nearest"), _transform(node)
    if mode == "nearest":
        mode = text(node, "nearest_mode", "round_prefer_floor")
    spec = ResizeTableSpec(mode, transform, scale, before, after, stride_bytes)
    places = allocate(f"{label}/at", "i64", (after, spec.taps))
    shares = allocate(f"{label}/weights", "f32", (after, spec.taps))
    lowering.add(Step(spec, (places, shares), (places, shares), (str(node.name),)))
    return places, shares, spec.taps


def _given_scales(node: ir.Node) -> dict[int, float]:
    """Return the factors that the model has, by axis."""
    data = static_shape(node.inputs[0])
    assert data is not None
    value = node.inputs[2] if len(node.inputs) > 2 else None
    constant = constant_of(value)
    if constant is None and node.op_type == "Upsample":
        constant = constant_of(node.inputs[1])
    if constant is None or not constant.size:
        return {}
    axes = [axis % len(data) for axis in integers(node, "axes", range(len(data)))]
    return dict(zip(axes, constant.numpy().reshape(-1).tolist(), strict=True))


def _transform(node: ir.Node) -> str:
    return text(node, "coordinate_transformation_mode", "half_pixel")
