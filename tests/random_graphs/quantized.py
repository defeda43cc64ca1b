"""Quantized tensors and weights as exporters write them, and the operators on integers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from random_graphs.elementwise import Build
from random_graphs.graph_writer import GraphWriter, IllegalError, Value
from random_graphs.reference import is_float

Array = NDArray[Any]


def _scale_of(w: GraphWriter, largest: float, steps: int) -> float:
    """Return a scale under which nearly all values fit; often one power of two."""
    exact = max(largest, 1e-3) * w.one_of([1.0, 1.0, 0.6, 1.7]) / steps
    return float(2.0 ** np.round(np.log2(exact))) if w.maybe(0.4) else float(np.float32(exact))


def _largest(array: Array) -> float:
    wide = np.abs(array.astype(np.float32))
    return min(float(wide[np.isfinite(wide)].max(initial=0.0)), 1e6)


def _grid(w: GraphWriter, array: Array) -> tuple[float, Array]:
    wide = w.opset >= 21 and w.maybe(0.15)
    kind = np.dtype(w.one_of([np.uint16, np.int16] if wide else [np.uint8, np.int8, np.int8]))
    info = np.iinfo(kind)
    scale = _scale_of(w, _largest(array), (int(info.max) - int(info.min)) // 2)
    middle = (int(info.max) + int(info.min) + 1) // 2
    zero = w.one_of([middle, middle, 0, w.whole(middle - 30, middle + 30), info.min])
    return scale, np.array(zero, kind)


def quantize_after(w: GraphWriter, value: Value) -> Value:
    """Put QuantizeLinear and DequantizeLinear after a value, mostly."""
    if not w.maybe(0.75):
        return value
    scale, zero = _grid(w, value.array)
    return pair(w, value, scale, zero)


def pair(w: GraphWriter, value: Value, scale: float, zero: Array) -> Value:
    s = w.constant(np.array(scale, np.float32))
    rest = [] if zero.dtype == np.uint8 and not int(zero) and w.maybe(0.3) else [w.constant(zero)]
    whole = w.op("QuantizeLinear", value, s, *rest)
    if w.maybe(0.1):
        scale, zero = _grid(w, value.array) if w.maybe(0.2) else (scale, zero)
        if zero.dtype == whole.array.dtype:
            s, rest = w.constant(np.array(scale, np.float32)), [w.constant(zero)]
    return w.op("DequantizeLinear", whole, s, *rest)


def weight(w: GraphWriter, array: Array, axis: int) -> Value:
    """Return weights; in a quantized graph mostly integers behind a DequantizeLinear."""
    if w.quantize_after is None or not w.maybe(0.85):
        return w.constant(array)
    each = w.maybe(0.5) and w.opset >= 13 and array.ndim > axis
    others = tuple(a for a in range(array.ndim) if a != axis)
    largest = np.abs(array).max(axis=others) if each else np.abs(array).max(keepdims=False)
    exact = np.maximum(largest, 1e-3) / 127
    scale = np.asarray(2.0 ** np.round(np.log2(exact)) if w.maybe(0.4) else exact, np.float32)
    if each and w.maybe(0.2) and w.opset >= 21 and array.ndim == 2:
        blocked = _in_blocks(w, array, axis)
        if blocked is not None:
            return blocked
    kind = np.dtype(w.one_of([np.int8, np.int8, np.int8, np.uint8]))
    middle = 0 if kind == np.int8 else 128
    zero = np.asarray(np.full(scale.shape, middle + w.one_of([0, 0, 3])), kind)
    along = [-1 if a == axis else 1 for a in range(array.ndim)]
    steps = np.rint(array / (scale.reshape(along) if each else scale)) + int(zero.reshape(-1)[0])
    info = np.iinfo(kind)
    whole = np.clip(steps, info.min, info.max).astype(kind)
    named = {"axis": axis} if w.opset >= 13 and (each or w.maybe(0.3)) and array.ndim else {}
    rest = [] if not zero.any() and kind == np.uint8 else [w.constant(zero)]
    return w.op("DequantizeLinear", w.constant(whole), w.constant(scale), *rest, **named)


def _in_blocks(w: GraphWriter, array: Array, axis: int) -> Value | None:
    """Return weights with a scale for each block along the axis that is summed over."""
    inner = 1 - axis
    size = array.shape[inner]
    blocks = [d for d in (2, 4, 8, 16) if size % d == 0]
    if not blocks:
        return None
    block = int(w.one_of(blocks))
    shape = list(array.shape)
    shape[inner] = size // block
    scale = np.asarray(0.01 + 0.02 * w.random.random(shape), np.float32)
    whole = w.integers(array.shape, np.int8, -127, 127)
    zero = w.constant(np.zeros(shape, np.int8))
    return w.op(
        "DequantizeLinear", w.constant(whole), w.constant(scale), zero, axis=inner, block_size=block
    )


def quantize(w: GraphWriter) -> object:
    x = w.float_value()
    scale, zero = _grid(w, x.array)
    if x.array.dtype != np.float32:
        raise IllegalError("a scale of another type")
    return pair(w, x, scale, zero)


def quantize_each(w: GraphWriter) -> object:
    """Quantize with a scale for each entry of an axis."""
    x = w.float_value(2, 3, 4)
    if x.array.dtype != np.float32 or w.opset < 13:
        raise IllegalError("scales along an axis came with 13")
    axis = w.whole(0, x.rank - 1)
    scale = w.constant(np.asarray(0.01 + 0.05 * w.random.random(x.shape[axis]), np.float32))
    zero = w.constant(w.integers((x.shape[axis],), np.int8))
    whole = w.op("QuantizeLinear", x, scale, zero, axis=axis)
    return w.op("DequantizeLinear", whole, scale, zero, axis=axis)


def dequantize(w: GraphWriter) -> object:
    """Dequantize an input of integers: 8 and 16 bits, and 32 without a zero point."""
    kinds = [np.uint8, np.int8, np.int32, *([np.uint16, np.int16] if w.opset >= 21 else [])]
    kind = np.dtype(w.one_of(kinds))
    x = w.input(w.integers(w.shape(w.whole(0, 4), 17), kind, -1000, 1000))
    scale = w.constant(np.array(_scale_of(w, 3.0, 127), np.float32))
    rest = [w.constant(w.integers((), kind))] if kind != np.int32 and w.maybe(0.7) else []
    return w.op("DequantizeLinear", x, scale, *rest)


def _as_integers(w: GraphWriter, x: Value) -> tuple[Value, Value, Value]:
    kind = np.dtype(w.one_of([np.uint8, np.int8]))
    info = np.iinfo(kind)
    scale = w.constant(np.array(_scale_of(w, _largest(x.array), 127), np.float32))
    zero = w.constant(np.array(w.whole(info.min + 100, info.min + 156), kind))
    return w.op("QuantizeLinear", x, scale, zero), scale, zero


def _output_grid(w: GraphWriter, kind: Any, largest: float) -> tuple[Value, Value, float, Array]:
    scale = _scale_of(w, largest, 127)
    info = np.iinfo(kind)
    zero = np.array(w.whole(info.min + 100, info.min + 156), kind)
    return w.constant(np.array(scale, np.float32)), w.constant(zero), scale, zero


def linear_matmul(w: GraphWriter) -> object:
    x = w.float_value(2, 3)
    if not is_float(x.array) or x.array.dtype != np.float32:
        raise IllegalError("QuantizeLinear takes float32")
    a, a_scale, a_zero = _as_integers(w, x)
    kind = a.array.dtype if w.maybe(0.7) else np.dtype(np.int8)
    outputs = w.size(33)
    b = w.constant(w.integers((x.shape[-1], outputs), kind, -90, 90))
    each = w.maybe(0.4)
    b_scale = w.constant(
        np.asarray(0.01 + 0.01 * w.random.random(outputs if each else ()), np.float32)
    )
    b_zero = w.constant(np.zeros(outputs if each else (), kind))
    y_scale, y_zero, *_ = _output_grid(w, a.array.dtype, 3.0 * np.sqrt(x.shape[-1]))
    y = w.op("QLinearMatMul", a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero)
    return w.op("DequantizeLinear", y, y_scale, y_zero)


def linear_conv(w: GraphWriter) -> object:
    from random_graphs.products import image, windows

    x = image(w, 3, 4)
    if x.array.dtype != np.float32:
        raise IllegalError("QuantizeLinear takes float32")
    a, a_scale, a_zero = _as_integers(w, x)
    channels = x.shape[1]
    group = w.one_of([1, 1, channels])
    outputs = group * w.one_of([1, 2, 5, 8]) if group == 1 else channels
    named = windows(w, x.shape[2:])
    shape = (outputs, channels // group, *named["kernel_shape"])
    kind = np.dtype(np.int8) if a.array.dtype == np.int8 or w.maybe(0.7) else a.array.dtype
    b = w.constant(w.integers(shape, kind, -90, 90))
    each = w.maybe(0.5)
    b_scale = np.asarray(0.01 + 0.01 * w.random.random(outputs if each else ()), np.float32)
    b_zero = w.constant(np.zeros(outputs if each else (), kind))
    y_scale, y_zero, *_ = _output_grid(w, a.array.dtype, 3.0 * np.sqrt(np.prod(shape[1:])))
    bias = [w.constant(w.integers((outputs,), np.int32, -900, 900))] if w.maybe(0.5) else []
    if group > 1:
        named["group"] = group
    y = w.op(
        "QLinearConv", a, a_scale, a_zero, b, w.constant(b_scale), b_zero, y_scale, y_zero,
        *bias, **named,
    )  # fmt: skip
    return w.op("DequantizeLinear", y, y_scale, y_zero)


def _codes(w: GraphWriter, shape: tuple[int, ...], kind: Any) -> Array:
    info = np.iinfo(kind)
    return w.integers(shape, kind, info.min, info.max)


def _given(w: GraphWriter, array: Array, fixed: float = 0.8) -> Value:
    """Return an array as a constant, or as an input."""
    return w.constant(array) if w.maybe(fixed) else w.input(array)


def _zero_points(w: GraphWriter, kind: Any, each: int) -> list[Value]:
    """Return no zero point, one, or one for each of `each`; near the middle or anywhere."""
    shape = (each,) if w.maybe(0.4) else ()
    if w.maybe(0.2):
        return []
    if w.maybe(0.3):
        return [_given(w, np.full(shape, 0 if kind == np.int8 else 128, kind))]
    return [_given(w, _codes(w, shape, kind))]


def _left(w: GraphWriter, x: Value | None, shape: tuple[int, ...]) -> list[Value]:
    """Return integers and their zero point: codes of `x` with their scale behind, or inputs."""
    if x is not None:
        return w.ops("DynamicQuantizeLinear", 3, x)
    kind = np.dtype(w.one_of([np.uint8, np.uint8, np.int8]))
    point = _given(w, _codes(w, (), kind))
    return [w.input(_codes(w, shape, kind)), w.number(0.01), point]


def _scaled(w: GraphWriter, total: Value, scale: Value, axis: int) -> object:
    """Mostly go back to floats as quantizers write it: Cast, Mul, at times Add."""
    if w.maybe(0.2):
        return total
    channels = total.shape[axis]
    along = (channels, *(1,) * (total.rank - 1 - axis)) if w.maybe(0.4) else ()
    weight_scale = w.constant(np.asarray(0.01 + 0.01 * w.random.random(along), np.float32))
    factor = w.op("Mul", scale, weight_scale)
    y = w.op("Mul", w.op("Cast", total, to=1), factor)
    if w.maybe(0.5):
        bias = w.floats((channels, *(1,) * (total.rank - 1 - axis)))
        y = w.op("Add", y, w.constant(bias.astype(np.float32)))
    return y


def dynamic_quantize(w: GraphWriter) -> object:
    x = w.float_value()
    if x.array.dtype != np.float32:
        raise IllegalError("DynamicQuantizeLinear takes float32")
    return w.ops("DynamicQuantizeLinear", 3, x)


def matmul_integer(w: GraphWriter) -> object:
    x = w.float_value(2, 3, 4) if w.float_type == np.float32 and w.maybe(0.7) else None
    codes, scale, point = _left(w, x, w.shape(w.whole(1, 3), 33))
    kind = np.dtype(w.one_of([np.int8, np.uint8]))
    shape = (codes.shape[-1], w.size(33))
    if codes.rank > 2 and w.maybe(0.3):
        shape = (*codes.shape[:-2], *shape)
    zeros = _zero_points(w, kind, shape[-1])
    total = w.op("MatMulInteger", codes, _given(w, _codes(w, shape, kind), 0.7), point, *zeros)
    return _scaled(w, total, scale, total.rank - 1)


def conv_integer(w: GraphWriter) -> object:
    from random_graphs.products import image, windows

    x = image(w, 3, 4) if w.float_type == np.float32 and w.maybe(0.7) else None
    channels = w.one_of([1, 3, 4, 8, 16, 17])
    codes, scale, point = _left(w, x, (w.one_of([1, 2]), channels, *w.shape(2, 17)))
    channels = codes.shape[1]
    group = w.one_of([1, 1, 1, channels, 2 if channels % 2 == 0 else 1])
    outputs = group * w.one_of([1, 2, 5, 8]) if group < channels else channels
    named = windows(w, codes.shape[2:])
    kind = np.dtype(w.one_of([np.int8, np.uint8]))
    shape = (outputs, channels // group, *named["kernel_shape"])
    zeros = _zero_points(w, kind, outputs)
    if group > 1:
        named["group"] = group
    weights = w.constant(_codes(w, shape, kind))
    return _scaled(w, w.op("ConvInteger", codes, weights, point, *zeros, **named), scale, 1)


BUILDERS: Mapping[str, tuple[int, Build]] = {
    "QuantizeLinear": (10, quantize), "QuantizeLinear each": (13, quantize_each),
    "DequantizeLinear": (10, dequantize), "QLinearMatMul": (10, linear_matmul),
    "QLinearConv": (10, linear_conv), "DynamicQuantizeLinear": (11, dynamic_quantize),
    "MatMulInteger": (11, matmul_integer), "ConvInteger": (11, conv_integer),
}  # fmt: skip
