"""The operators between products, in numpy: each with the arrays it reads and the one it fills.

They see the axes of ONNX, while four-axis arrays lie with their channels last: numpy walks over
memory in its order all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer, number, text, window_of
from vermilion.ir.execute import Array
from vermilion.ir.literal.call import Call
from vermilion.ir.literal.table import find_row
from vermilion.quantize.native_run.epilogue import bounds_of
from vermilion.quantize.native_run.pools import average_pool, max_pool
from vermilion.quantize.native_run.tensors import Shape

Fill = Callable[[Sequence[Array], Array], None]


def operator_of(node: ir.Node, shapes: Sequence[Shape], results: Sequence[Shape]) -> list[Fill]:
    """Return what fills each result of `node` from its inputs, nothing where one is not known."""
    if node.domain not in ("", "ai.onnx"):
        return []
    if node.op_type in _MOVED:
        return _moved(node, results)
    maker = _MAKERS.get(node.op_type)
    if maker is None or len(results) != 1:
        return []
    fill = maker(node, shapes, results[0])
    return [] if fill is None else [fill]


def _moved(node: ir.Node, results: Sequence[Shape]) -> list[Fill]:
    """What only moves numbers is done as where models are run literally, constants given."""
    if node.graph is None or any(v is not None and v.const_value is None for v in node.inputs[1:]):
        return []
    version = node.graph.opset_imports.get(node.domain, 1)
    row = find_row(node.domain, node.op_type, version)
    if row is None or not row.moves:
        return []
    types = tuple(None if value is None else value.dtype for value in node.inputs)

    def result(given: Sequence[Array | None], number: int) -> Array:
        call = Call(node, version, tuple(given), types, is_wide=False, run_graph=_no_graph)
        made = row.function(call)
        found: Array = made[number] if isinstance(made, tuple) else made
        return found

    return [partial(_copy, result, number) for number in range(len(results))]


def _copy(
    result: Callable[[Sequence[Array | None], int], Array],
    number: int,
    given: Sequence[Array],
    out: Array,
) -> None:
    np.copyto(out, result(given, number))


def _no_graph(graph: ir.Graph, given: Sequence[object]) -> list[object]:
    raise AssertionError("what moves numbers has no graph inside")


def _always(fill: Fill) -> Callable[[ir.Node, Sequence[Shape], Shape], Fill]:
    return lambda node, shapes, result: fill


def _one(ufunc: np.ufunc) -> Callable[[ir.Node, Sequence[Shape], Shape], Fill]:
    return _always(lambda given, out: _done(ufunc(given[0], out=out)))


def _two(ufunc: np.ufunc) -> Callable[[ir.Node, Sequence[Shape], Shape], Fill]:
    return _always(lambda given, out: _done(ufunc(given[0], given[1], out=out)))


def _bounded(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    bounds = bounds_of(node)
    if bounds is None:
        return None
    low, high = (np.float32(bound) for bound in bounds)
    if high == math.inf:
        return lambda given, out: _done(np.maximum(given[0], low, out=out))
    return lambda given, out: _done(np.clip(given[0], low, high, out=out))


def _leaky(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill:
    slope = np.float32(number(node, "alpha", 0.01))

    def fill(given: Sequence[Array], out: Array) -> None:
        np.multiply(given[0], np.where(given[0] < 0, slope, np.float32(1)), out=out)

    return fill


def _sigmoid(given: Sequence[Array], out: Array) -> None:
    np.negative(given[0], out=out)
    with np.errstate(over="ignore"):  # a large power, whose reciprocal is 0
        np.exp(out, out=out)
    np.add(out, np.float32(1), out=out)
    np.reciprocal(out, out=out)


def _hard_sigmoid(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill:
    swish = node.op_type == "HardSwish"
    slope = np.float32(1 / 6 if swish else number(node, "alpha", 0.2))
    middle = np.float32(0.5 if swish else number(node, "beta", 0.5))

    def fill(given: Sequence[Array], out: Array) -> None:
        np.multiply(given[0], slope, out=out)
        np.add(out, middle, out=out)
        np.clip(out, np.float32(0), np.float32(1), out=out)
        if swish:
            np.multiply(out, given[0], out=out)

    return fill


def _normalize(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill:
    epsilon = np.float32(number(node, "epsilon", 1e-5))
    across = (1, -1) + (1,) * (len(result) - 2)

    def fill(given: Sequence[Array], out: Array) -> None:
        scale, shift, mean, variance = given[1:5]
        factor = scale / np.sqrt(variance + epsilon)
        np.multiply(given[0], factor.reshape(across), out=out)
        np.add(out, (shift - mean * factor).reshape(across), out=out)

    return fill


def _mean(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    if node.op_type == "GlobalAveragePool":
        axes: tuple[int, ...] | None = tuple(range(2, len(shapes[0])))
    elif (attribute := node.attributes.get("axes")) is not None:
        axes = tuple(attribute.as_ints())
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = node.inputs[1].const_value
        if constant is None or constant.size == 0:
            return None
        axes = tuple(int(axis) for axis in constant.numpy())
    elif integer(node, "noop_with_empty_axes", 0):
        return None
    else:
        axes = None
    if len(shapes[0]) == 4 and axes is not None and {axis % 4 for axis in axes} == {2, 3}:
        return _mean_of_pixels

    def fill(given: Sequence[Array], out: Array) -> None:
        kept = np.mean(given[0], axis=axes, keepdims=True)
        np.copyto(out, kept.reshape(out.shape))

    return fill


def _mean_of_pixels(given: Sequence[Array], out: Array) -> None:
    """Channels lie last, so this is a product; numpy's own sum takes twice as long and more."""
    images, channels, height, width = given[0].shape
    pixels = given[0].transpose(0, 2, 3, 1).reshape(images, height * width, channels)
    share = np.full((1, height * width), 1.0 / (height * width), np.float32)
    np.copyto(out, (share @ pixels).reshape(out.shape))


def _softmax(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill:
    axis = integer(node, "axis", -1)

    def fill(given: Sequence[Array], out: Array) -> None:
        np.subtract(given[0], np.max(given[0], axis=axis, keepdims=True), out=out)
        np.exp(out, out=out)
        np.divide(out, np.sum(out, axis=axis, keepdims=True), out=out)

    return fill


def _concatenate(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill:
    axis = integer(node, "axis", 0)
    return lambda given, out: _done(np.concatenate(list(given), axis=axis, out=out))


def _resize(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    """Whole multiples by nearest, where both roundings below give ⌊place ÷ factor⌋."""
    words = tuple(
        text(node, name, default)
        for name, default in (
            ("mode", "nearest"),
            ("coordinate_transformation_mode", "half_pixel"),
            ("nearest_mode", "round_prefer_floor"),
        )
    )
    places = (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
    if words[0] != "nearest" or words[1:] not in places or len(result) != 4:
        return None
    rows, rest_rows = divmod(result[2], shapes[0][2])
    columns, rest_columns = divmod(result[3], shapes[0][3])
    if rest_rows or rest_columns or result[:2] != shapes[0][:2]:
        return None

    def fill(given: Sequence[Array], out: Array) -> None:
        for row in range(rows):
            for column in range(columns):
                np.copyto(out[:, :, row::rows, column::columns], given[0])

    return fill


def _transposed(node: ir.Node, shapes: Sequence[Shape], result: Shape) -> Fill | None:
    """Of a ConvTranspose, only windows that lie side by side."""
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


def _power(given: Sequence[Array], out: Array) -> None:
    if given[1].size == 1 and given[1].reshape(()) == 2.0:
        np.square(given[0], out=out)
    else:
        np.power(given[0], given[1], out=out)


def _done(array: Array) -> None:
    """Forget what numpy gives beside filling the array it was told to fill."""


_MOVED = {
    *("DepthToSpace", "Expand", "Flatten", "Gather", "Identity", "Pad", "Reshape", "Slice"),
    *("SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}

_MAKERS: dict[str, Callable[[ir.Node, Sequence[Shape], Shape], Fill | None]] = {
    "Abs": _one(np.absolute),
    "Add": _two(np.add),
    "AveragePool": average_pool,
    "BatchNormalization": _normalize,
    "Clip": _bounded,
    "Concat": _concatenate,
    "ConvTranspose": _transposed,
    "Div": _two(np.divide),
    "Exp": _one(np.exp),
    "GlobalAveragePool": _mean,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_sigmoid,
    "LeakyRelu": _leaky,
    "MatMul": _two(np.matmul),
    "MaxPool": max_pool,
    "Mul": _two(np.multiply),
    "Neg": _one(np.negative),
    "Pow": _always(_power),
    "ReduceMean": _mean,
    "Relu": _bounded,
    "Resize": _resize,
    "Sigmoid": _always(_sigmoid),
    "Softmax": _softmax,
    "Sqrt": _one(np.sqrt),
    "Sub": _two(np.subtract),
    "Tanh": _one(np.tanh),
}
