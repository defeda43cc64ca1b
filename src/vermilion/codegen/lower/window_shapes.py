"""Shapes of what slides a window over images or steps through time.

Source of every formula: the operator's page at https://onnx.ai/onnx/operators/.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer, integers, text
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_known, known_value, lesser

Shape = tuple[int, ...]


class UnknownShape(Exception):
    """A node whose result cannot be computed from its inputs, with the reason."""


def require(condition: bool, reason: str) -> None:
    """Raise UnknownShape with the reason where a condition does not hold."""
    if not condition:
        raise UnknownShape(reason)


def shape_of(node: ir.Node, index: int) -> Shape:
    """Return the shape of an input."""
    value = node.inputs[index] if index < len(node.inputs) else None
    shape = static_shape(value)
    require(shape is not None, f"the shape of input {index} is not known")
    assert shape is not None
    return shape


def given(node: ir.Node, index: int) -> bool:
    """Say whether an input is there."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return value is not None and bool(value.name)


def constants(node: ir.Node, index: int) -> list[int] | None:
    """Return the whole numbers of an input, None where it is left out."""
    if not given(node, index):
        return None
    numbers = whole_numbers(node.inputs[index])
    require(numbers is not None, f"input {index} is not constant")
    return numbers


def whole_numbers(value: ir.Value | None) -> list[int] | None:
    """Return the numbers of a constant, or of what follows from sizes alone; None of others."""
    known = None if value is None else known_value(value.name)
    if known is not None:
        return list(known.reshape(-1))
    constant = constant_of(value)
    numbers = [] if constant is None else constant.numpy().reshape(-1).tolist()
    # Pad's value may be -inf, which is no whole number.
    if constant is None or not all(map(math.isfinite, numbers)):
        return None
    return [int(number) for number in numbers]


def needed(node: ir.Node, index: int) -> list[int]:
    """Return the whole numbers of an input that has to be there."""
    numbers = constants(node, index)
    require(numbers is not None, f"input {index} is missing")
    assert numbers is not None
    return numbers


def convolution(node: ir.Node, weights: int = 1) -> list[Shape]:
    """Conv, ConvInteger, and QLinearConv with its weights at another place."""
    data, kernel = shape_of(node, 0), shape_of(node, weights)
    rank = len(data) - 2
    require(rank > 0 and len(kernel) == len(data), "data and weights differ in rank")
    group = integer(node, "group", 1)
    require(group > 0 and kernel[0] % group == 0, f"{kernel[0]} channels in {group} groups")
    require(
        data[1] == kernel[1] * group,
        f"data of {data[1]} channels, weights for {kernel[1]} in each of {group} groups",
    )
    require(
        integers(node, "kernel_shape", kernel[2:]) == kernel[2:],
        f"`kernel_shape` is not that of the weights, {list(kernel[2:])}",
    )
    bias = {"Conv": 2, "QLinearConv": 8}.get(node.op_type)
    if bias is not None and given(node, bias):
        require(math.prod(shape_of(node, bias)) == kernel[0], f"a bias not of {kernel[0]} channels")
    return [(data[0], kernel[0], *_slid(node, data[2:], kernel[2:], ceil=False))]


def pool(node: ir.Node) -> list[Shape]:
    """MaxPool and AveragePool; the indices of MaxPool have the shape of the result."""
    data = shape_of(node, 0)
    kernel = integers(node, "kernel_shape", ())
    require(len(kernel) == len(data) - 2 > 0, "`kernel_shape` and data differ in rank")
    sizes = _slid(node, data[2:], kernel, ceil=bool(integer(node, "ceil_mode", 0)))
    return [(*data[:2], *sizes)] * 2


def _slid(node: ir.Node, sizes: Shape, kernel: Shape, *, ceil: bool) -> Shape:
    """Return at how many places a window stands along each axis."""
    rank = len(sizes)
    strides, dilations, pads = _steps(node, rank)
    mode = text(node, "auto_pad", "NOTSET")
    result = []
    for at, size in enumerate(sizes):
        stride, reach = strides[at], (kernel[at] - 1) * dilations[at] + 1
        if mode.startswith("SAME"):
            result.append(-(-size // stride))
            continue
        before, after = (pads[at], pads[rank + at]) if mode == "NOTSET" else (0, 0)
        left = size + before + after - reach
        # Rounded up, a window may begin where it does not end.
        is_there = left > -stride if ceil else left >= 0
        require(is_there, f"a window of {reach} over {size + before + after}")
        count = (-(-left // stride) if ceil else left // stride) + 1
        # A window that begins behind the data and the padding before it is left out. None does
        # where windows reach at least a stride beyond the padding behind the data.
        if ceil and reach < after + stride:
            count = lesser(count, -(-(size + before) // stride))
        result.append(count)
    return tuple(result)


def _steps(node: ir.Node, rank: int) -> tuple[Shape, Shape, Shape]:
    strides = integers(node, "strides", [1] * rank)
    dilations = integers(node, "dilations", [1] * rank)
    pads = integers(node, "pads", [0] * 2 * rank)
    require(len(strides) == len(dilations) == rank, "strides or dilations of another rank")
    require(len(pads) == 2 * rank, "pads of another rank")
    require(min((*strides, *dilations)) > 0, "strides or dilations that are not positive")
    require(min(pads) >= 0, "pads that are negative")
    return strides, dilations, pads


def transposed(node: ir.Node) -> list[Shape]:
    """ConvTranspose."""
    data, kernel = shape_of(node, 0), shape_of(node, 1)
    rank = len(data) - 2
    require(rank > 0 and len(kernel) == len(data), "data and weights differ in rank")
    require(data[1] == kernel[0], f"data of {data[1]} channels, weights for {kernel[0]}")
    require(
        integers(node, "kernel_shape", kernel[2:]) == kernel[2:],
        f"`kernel_shape` is not that of the weights, {list(kernel[2:])}",
    )
    channels = kernel[1] * integer(node, "group", 1)
    if given(node, 2):
        require(math.prod(shape_of(node, 2)) == channels, f"a bias not of {channels} channels")
    strides, dilations, pads = _steps(node, rank)
    more = integers(node, "output_padding", [0] * rank)
    wanted = integers(node, "output_shape", None)
    if wanted is not None:  # the pads follow from it
        require(len(wanted) == rank and min(wanted) > 0, f"`output_shape` is {list(wanted)}")
        return [(data[0], channels, *wanted)]
    require(text(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID"), "`auto_pad` is given")
    require(len(more) == rank, "`output_padding` of another rank")
    sizes = [
        strides[at] * (size - 1)
        + more[at]
        + (kernel[2 + at] - 1) * dilations[at]
        + 1
        - pads[at]
        - pads[rank + at]
        for at, size in enumerate(data[2:])
    ]
    # Each by itself: which of two is smaller would be taken for granted at every size.
    require(all(size > 0 for size in sizes), "nothing is left of the result")
    return [(data[0], channels, *sizes)]


# The factor of an open dimension is a whole number of so many parts: any other is rounded.
_MOST_PARTS = 64


def resized(node: ir.Node) -> list[Shape]:
    """Resize by constant scales or to constant sizes."""
    data = shape_of(node, 0)
    axes = [axis % len(data) for axis in integers(node, "axes", range(len(data)))]
    policy = text(node, "keep_aspect_ratio_policy", "stretch")
    require(policy == "stretch", f"`keep_aspect_ratio_policy` is {policy}")
    result = list(data)
    sizes = constants(node, 3)
    if sizes:
        require(len(sizes) == len(axes), "sizes of another rank")
        for axis, size in zip(axes, sizes, strict=True):
            result[axis] = size
        return [tuple(result)]
    constant = constant_of(node.inputs[2]) if given(node, 2) else None
    require(constant is not None, "neither scales nor sizes are constant")
    assert constant is not None
    scales = constant.numpy().astype(np.float32).reshape(-1)
    require(len(scales) == len(axes), "scales of another rank")
    for axis, scale in zip(axes, scales, strict=True):
        if not is_known(data[axis]):
            # By 0.5 or 1.25: what is cut off is the same in whole numbers.
            times, parts = float(scale).as_integer_ratio()
            require(parts <= _MOST_PARTS, f"a dimension that is open, by {scale}")
            result[axis] = data[axis] * times // parts
            continue
        # The product is rounded to float32 before it is cut, as ONNX Runtime does.
        result[axis] = math.floor(np.float32(data[axis]) * scale)
    return [tuple(result)]


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(node: ir.Node) -> list[Shape]:
    """LSTM, GRU and RNN: all states, the last state and, of an LSTM, the last cell."""
    data, weights, states = (shape_of(node, index) for index in range(3))
    require(len(data) == len(weights) == len(states) == 3, "data or weights not of rank 3")
    first = bool(integer(node, "layout", 0))
    steps, batch = (data[1], data[0]) if first else data[:2]
    directions = 2 if text(node, "direction", "forward") == "bidirectional" else 1
    hidden, gates = states[2], _GATES[node.op_type]
    require(integer(node, "hidden_size", hidden) == hidden, f"`hidden_size` is not {hidden}")
    wanted: Sequence[tuple[int, Shape]] = (
        (1, (directions, gates * hidden, data[2])),
        (2, (directions, gates * hidden, hidden)),
        (3, (directions, 2 * gates * hidden)),
        (5, _by_layout(first, directions, batch, hidden)),
        (6, _by_layout(first, directions, batch, hidden)),
        (7, (directions, 3 * hidden)),
    )
    for index, shape in wanted:
        if given(node, index):
            has = shape_of(node, index)
            require(has == shape, f"input {index} is {list(has)}, not {list(shape)}")
    every = (steps, directions, batch, hidden)
    last = _by_layout(first, directions, batch, hidden)
    return [(batch, steps, directions, hidden) if first else every, last, last]


def _by_layout(first: bool, directions: int, batch: int, hidden: int) -> Shape:
    return (batch, directions, hidden) if first else (directions, batch, hidden)
