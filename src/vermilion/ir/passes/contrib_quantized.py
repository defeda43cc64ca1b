"""Operators of `com.microsoft` on quantized numbers: dequantize, compute, quantize."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from vermilion.ir.arrays import Array
from vermilion.ir.attributes import integer, number
from vermilion.ir.passes.contrib_writer import (
    Definition,
    Left,
    Writer,
    array_of,
    given,
    rank_of,
    required,
)

_QUANTIZED_SINCE = 10


def _grid(w: Writer, node: ir.Node, at: int) -> list[ir.Value]:
    """Return the scale and the zero point at `at`; one number is no vector."""
    if w.opset < _QUANTIZED_SINCE:
        raise Left(f"opset {w.opset} has no DequantizeLinear")
    values = []
    for place in (at, at + 1):
        value = given(node, place)
        if value is None:
            continue
        array = array_of(value)
        if array is None:
            raise Left(f"{node.op_type} with a scale that is not constant")
        values.append(w.constant(array.reshape(())) if array.size == 1 else value)
    return values


def _real(w: Writer, node: ir.Node, at: int) -> ir.Value:
    """Return integers, scale and zero point from input `at` on as what they stand for."""
    result = w("DequantizeLinear", required(node, at), *_grid(w, node, at + 1))
    result.type = ir.TensorType(ir.DataType.FLOAT)
    return result


def _integers(w: Writer, node: ir.Node, x: ir.Value, at: int) -> list[ir.Value]:
    """Return `x` on the grid from input `at` on."""
    grid = _grid(w, node, at)
    result = w("QuantizeLinear", x, *grid)
    result.type = grid[1].type if len(grid) > 1 else ir.TensorType(ir.DataType.UINT8)
    return [result]


def _joined(op_type: str) -> Definition:
    def definition(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
        return _integers(w, node, w(op_type, _real(w, node, 0), _real(w, node, 3)), 6)

    return definition


def _leaky_relu(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    result = w("LeakyRelu", _real(w, node, 0), alpha=number(node, "alpha", 0.01))
    return _integers(w, node, result, 3)


def _sigmoid(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    return _integers(w, node, w("Sigmoid", _real(w, node, 0)), 3)


def _softmax(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    if integer(node, "opset", 13) < 13 or w.opset < 13:
        raise Left("QLinearSoftmax over axes that are taken together")
    result = w("Softmax", _real(w, node, 0), axis=integer(node, "axis", -1))
    return _integers(w, node, result, 3)


_WINDOW = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


def _average_pool(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    if integer(node, "channels_last", 0):
        raise Left("QLinearAveragePool with channels last")
    result = w("AveragePool", _real(w, node, 0))
    made = result.producer()
    assert made is not None, "it was written just now"
    for name in _WINDOW:
        if (attribute := node.attributes.get(name)) is not None:
            made.attributes.add(attribute)
    return _integers(w, node, result, 3)


def _global_average_pool(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    x = _real(w, node, 0)
    if integer(node, "channels_last", 0):
        axes = range(1, rank_of(required(node, 0)) - 1)
        return _integers(w, node, w.mean(x, *axes), 3)
    return _integers(w, node, w("GlobalAveragePool", x), 3)


def _concat(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    parts = [_real(w, node, at) for at in range(2, len(node.inputs), 3)]
    return _integers(w, node, w("Concat", *parts, axis=integer(node, "axis")), 0)


def _gemm(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    """Sums are multiplied by one factor, so that halves are rounded as ONNX Runtime does."""
    found = [array_of(given(node, at)) for at in (1, 4)]
    if found[0] is None or found[1] is None or found[0].size != 1:
        raise Left("QGemm with a scale that is not constant, or one for each row")
    result_scale = None if given(node, 7) is None else array_of(given(node, 7))
    if given(node, 7) is not None and (result_scale is None or result_scale.size != 1):
        raise Left("QGemm with a scale that is not constant")
    scales = [array.astype(np.float32) for array in found if array is not None]
    factor: Array = np.float32(number(node, "alpha", 1.0)) * scales[0].reshape(()) * scales[1]
    if result_scale is not None:
        factor = factor / result_scale.reshape(()).astype(np.float32)
    factor = np.asarray(factor, np.float32)
    if factor.size == 1:
        factor = factor.reshape(())
    elif w.opset < 13:
        raise Left(f"opset {w.opset} has no DequantizeLinear by channel")
    one = w.constant(np.array(1, np.float32))
    scale, axis = w.constant(factor), 0 if integer(node, "transB", 0) else 1
    along = {"axis": axis} if factor.ndim else {}
    parts = [
        _dequantized(w, required(node, 0), one, given(node, 2)),
        _dequantized(w, required(node, 3), scale, _points(w, node, 5, factor), **along),
    ]
    if (bias := given(node, 6)) is not None:
        if factor.ndim and rank_of(bias) != 1:
            raise Left("QGemm with a bias of rows and a scale by column")
        parts.append(_dequantized(w, bias, scale, None, **({"axis": 0} if factor.ndim else {})))
    turned = {name: integer(node, name, 0) for name in ("transA", "transB")}
    result = w("Gemm", *parts, **turned)
    if result_scale is None:
        return [result]
    point = given(node, 8)
    result = w("QuantizeLinear", result, one, *([] if point is None else [_scalar(w, point)]))
    result.type = ir.TensorType(ir.DataType.UINT8) if point is None else point.type
    return [result]


def _dequantized(
    w: Writer, x: ir.Value, scale: ir.Value, point: ir.Value | None, **attributes: int
) -> ir.Value:
    more = [] if point is None else [_scalar(w, point)]
    result = w("DequantizeLinear", x, scale, *more, **attributes)
    result.type = ir.TensorType(ir.DataType.FLOAT)
    return result


def _scalar(w: Writer, value: ir.Value) -> ir.Value:
    array = array_of(value)
    return w.constant(array.reshape(())) if array is not None and array.size == 1 else value


def _points(w: Writer, node: ir.Node, at: int, factor: Array) -> ir.Value | None:
    """Return zero points in the shape of the factor."""
    value = given(node, at)
    array = array_of(value)
    if value is None or array is None or array.size == factor.size:
        return value
    if array.size != 1:
        raise Left("QGemm with a zero point by column and one scale")
    return w.constant(np.full(factor.shape, array.reshape(())[()], array.dtype))


# Products with floats behind them ---------------------------------------------------------------


def integer_product(
    w: Writer, node: ir.Node, parts: Sequence[ir.Value | None], scale: ir.Value, bias_at: int
) -> list[ir.Value]:
    """Return a product of integers in floats: times a scale, plus the node's bias if it has one.

    `parts` are both sides and their zero points.
    """
    while parts and parts[-1] is None:
        parts = parts[:-1]
    total = w("MatMulInteger", *parts)
    total.type = ir.TensorType(ir.DataType.INT32)
    result = w("Mul", w.cast(total, ir.DataType.FLOAT), scale)
    bias = given(node, bias_at)
    return [result if bias is None else w("Add", result, bias)]


def _integer_to_float(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    if required(node, 2).dtype not in (None, ir.DataType.FLOAT):
        raise Left(f"{node.op_type} that gives other floats than 32 bits")
    scale = w("Mul", required(node, 2), required(node, 3))
    parts = [required(node, 0), required(node, 1), given(node, 4), given(node, 5)]
    return integer_product(w, node, parts, scale, 6)


def _dynamic_product(w: Writer, node: ir.Node) -> Sequence[ir.Value]:
    integers, scale, point = w.results("DynamicQuantizeLinear", [required(node, 0)], 3)
    integers.type = point.type = ir.TensorType(ir.DataType.UINT8)
    parts = [integers, required(node, 1), point, given(node, 3)]
    return integer_product(w, node, parts, w("Mul", scale, required(node, 2)), 4)


DEFINITIONS: Mapping[str, Definition] = {
    "QLinearAdd": _joined("Add"),
    "QLinearMul": _joined("Mul"),
    "QLinearLeakyRelu": _leaky_relu,
    "QLinearSigmoid": _sigmoid,
    "QLinearSoftmax": _softmax,
    "QLinearAveragePool": _average_pool,
    "QLinearGlobalAveragePool": _global_average_pool,
    "QLinearConcat": _concat,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _integer_to_float,
    "DynamicQuantizeMatMul": _dynamic_product,
}
