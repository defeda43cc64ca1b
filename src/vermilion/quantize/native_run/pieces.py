"""Operators that take tensors apart or put pieces side by side, in numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer
from vermilion.ir.execute import Array
from vermilion.quantize.algorithms.layers import window_of
from vermilion.quantize.native_run.tensors import Shape

Fill = Callable[[Sequence[Array], Array], None]


def cut_out(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    """Return what fills the result of a Slice whose places are constants."""
    numbers = [_constant(value) for value in node.inputs[1:] if value is not None]
    if not numbers or None in numbers or len(numbers) != len(node.inputs) - 1:
        return None
    starts, ends, *others = (number for number in numbers if number is not None)
    axes = others[0] if others else list(range(len(starts)))
    steps = others[1] if len(others) > 1 else [1] * len(starts)
    rank, places = len(shapes[0]), [slice(None)] * len(shapes[0])
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        length = shapes[0][axis % rank]
        # An end before the first element, as ONNX writes it for steps back, has no number here.
        stop = None if step < 0 and end < -length else end
        places[axis % rank] = slice(start, stop, step)
    return lambda given, out: np.copyto(out, given[0][tuple(places)])


def split(node: ir.Node, shape: Shape, results: Sequence[Shape]) -> list[Fill]:
    """Return what fills each part of a Split."""
    axis = integer(node, "axis", 0)
    before = (slice(None),) * (axis % len(shape))
    fills: list[Fill] = []
    start = 0
    for result in results:
        stop = start + result[axis]
        fills.append(_part((*before, slice(start, stop))))
        start = stop
    return fills


def spread(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    """Return what fills the result of a ConvTranspose whose windows lie side by side."""
    weight = node.inputs[1]
    if len(result) != 4 or weight is None or weight.const_value is None:
        return None
    channels, outputs, rows, columns = weight.const_value.shape.numpy()
    window = window_of(node, (rows, columns))
    side_by_side = window.strides == (rows, columns) and window.dilations == (1, 1)
    group = integer(node, "group", 1)
    plain = group == 1 and {"output_padding", "output_shape"}.isdisjoint(node.attributes)
    if not side_by_side or not plain or window.pads != (0, 0, 0, 0):
        return None

    def fill(given: Sequence[Array], out: Array) -> None:
        pixels = given[0].transpose(0, 2, 3, 1)
        each = pixels.reshape(-1, channels) @ given[1].reshape(channels, -1)
        placed = each.reshape(*pixels.shape[:3], outputs, rows, columns)
        into = out.reshape(out.shape[0], outputs, pixels.shape[1], rows, pixels.shape[2], columns)
        np.copyto(into, placed.transpose(0, 3, 1, 4, 2, 5))
        if len(given) > 2:
            np.add(out, given[2][:, None, None], out=out)

    return fill


def _part(places: tuple[slice, ...]) -> Fill:
    return lambda given, out: np.copyto(out, given[0][places])


def _constant(value: ir.Value) -> list[int] | None:
    if value.const_value is None:
        return None
    return [int(number) for number in value.const_value.numpy().reshape(-1)]
