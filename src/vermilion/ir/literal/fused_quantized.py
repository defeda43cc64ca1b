"""Operators of `com.microsoft` on quantized numbers, and our own rounding to blocks.

Source of the former: ONNX Runtime's `docs/ContribOperators.md`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.literal import quantize, reduce, windows
from vermilion.ir.literal.call import Call, Table, Typed, computes
from vermilion.ir.literal.elementwise import sigmoid
from vermilion.ir.literal.products import product, without_zero_point
from vermilion.ir.literal.quantize import quantized, requantized
from vermilion.ir.literal.rounding import widened

Array = NDArray[Any]

# Values of a block that share an exponent, and the largest multiple of its step.
_BLOCK, _MOST = 8, 127


def _real(call: Call, at: int) -> Array:
    """Return codes, scale and zero point from input `at` on as what they stand for."""
    return without_zero_point(call[at], call.get(at + 2)) * call[at + 1]


def _codes(call: Call, x: Array, at: int, kind: ir.DataType) -> Typed:
    """Return `x` as codes of the scale and the zero point from input `at` on."""
    point = call.get(at + 1)
    codes = quantized(x, call[at].reshape(()), point, kind, ir.DataType.FLOAT)
    return Typed(codes, kind)


def _add(call: Call) -> Typed:
    return _codes(call, _real(call, 0) + _real(call, 3), 6, call.type(0))


def _mul(call: Call) -> Typed:
    return _codes(call, _real(call, 0) * _real(call, 3), 6, call.type(0))


def _leaky_relu(call: Call) -> Typed:
    x = _real(call, 0)
    return _codes(call, np.where(x < 0, x * call.number("alpha", 0.01), x), 3, call.type(0))


def _sigmoid(call: Call) -> Typed:
    return _codes(call, sigmoid(_real(call, 0)), 3, call.type(0))


def _softmax(call: Call) -> Typed:
    x, axis = _real(call, 0), call.integer("axis", -1)
    if call.integer("opset", 13) < 13:
        at = x.ndim if axis == x.ndim else call.axis(axis, x.ndim)
        rows = x.reshape(int(np.prod(x.shape[:at])), -1)
        y = reduce.softmax(rows, 1).reshape(x.shape)
    else:
        y = reduce.softmax(x, call.axis(axis, x.ndim))
    return _codes(call, y, 3, call.type(0))


def _average_pool(call: Call) -> Typed:
    if call.integer("channels_last", 0):
        raise call.unsupported("QLinearAveragePool with channels last is not interpreted")
    return _codes(call, windows.average_pooled(call, _real(call, 0)), 3, call.type(0))


def _global_average_pool(call: Call) -> Typed:
    x = _real(call, 0)
    is_last = bool(call.integer("channels_last", 0))
    axes = tuple(range(1, x.ndim - 1)) if is_last else tuple(range(2, x.ndim))
    return _codes(call, reduce.mean(x, axes), 3, call.type(0))


def _concat(call: Call) -> Typed:
    parts = [_real(call, at) for at in range(2, len(call.inputs), 3)]
    axis = call.axis(call.integer("axis"), parts[0].ndim)
    return _codes(call, np.concatenate(parts, axis), 0, call.type(1))


def _gemm(call: Call) -> Typed:
    a = without_zero_point(call[0], call.get(2))
    b = call[3].T if call.integer("transB", 0) else call[3]
    b = without_zero_point(b, call.get(5), axis=1)
    total = product(a.T if call.integer("transA", 0) else a, b)
    if call.has(6):
        total = total + call[6]
    scale = np.float32(call.number("alpha", 1.0)) * call[1].astype(np.float32)
    scale = np.asarray(scale * call[4].astype(np.float32))
    if not call.has(7):
        return Typed(total * scale, ir.DataType.FLOAT)
    scale = np.asarray(scale / call[7].astype(np.float32))
    return Typed(requantized(total, scale, call[8].reshape(())), call.type(8))


def _integer_product(call: Call, places: tuple[int, int, int, int, int]) -> Array:
    """Return a product of codes as floats: scales, zero points and the bias by input."""
    a_scale, b_scale, a_point, b_point, bias = places
    a = without_zero_point(call[0], call.get(a_point))
    b = without_zero_point(call[1], call.get(b_point), axis=call[1].ndim - 1)
    result = product(a, b) * call[a_scale] * call[b_scale]
    return result + call[bias] if call.has(bias) else result


def _integer_to_float(call: Call) -> Typed:
    return Typed(_integer_product(call, (2, 3, 4, 5, 6)), call.type(2))


def _dynamic_product(call: Call) -> Array:
    codes, scale, point = (part.array for part in quantize.dynamically_quantized(call[0]))
    a = without_zero_point(codes, point)
    b = without_zero_point(call[1], call.get(3), axis=call[1].ndim - 1)
    result = product(a, b) * scale.astype(np.float64) * call[2]
    return result + call[4] if call.has(4) else result


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """Return the first `count` codes of each row of bytes, the lowest bits first."""
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * bits
    codes = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(*packed.shape[:-1], -1)[..., :count]


def _few_bits(call: Call) -> Array:
    rows, depth = call.integer("N"), call.integer("K")
    bits, block = call.integer("bits", 4), call.integer("block_size")
    if bits not in (2, 4, 8):
        raise call.unsupported(f"MatMulNBits of {bits} bits is not interpreted")
    blocks = -(-depth // block)
    codes = _unpacked(call[1].reshape(rows, blocks, -1), bits, block).astype(np.float64)
    scales = call[2].reshape(rows, blocks, 1)
    points: Array = np.full((rows, blocks, 1), float(1 << (bits - 1)))
    if call.has(3):
        given = call[3]
        if given.dtype == np.uint8:
            given = _unpacked(given.reshape(rows, -1), bits, blocks)
        points = given.astype(np.float64).reshape(rows, blocks, 1)
    if call.has(4):
        order = call[4].astype(np.int64)[:depth]
        flat = codes.reshape(rows, -1)[:, :depth]
        weights = (flat - points[:, order, 0]) * scales[:, order, 0]
    else:
        weights = ((codes - points) * scales).reshape(rows, -1)[:, :depth]
    result = product(call[0], weights.T)
    return result + call[5] if call.has(5) else result


def _round_to_blocks(call: Call) -> Array:
    """Return the nearest multiples of 2^(E - 133), at most 127, E the largest of 8 exponents."""
    x = widened(call[0])
    axis = call.axis(call.integer("axis", -1), x.ndim)
    rows = np.moveaxis(x, axis, -1)
    missing = -rows.shape[-1] % _BLOCK
    padded = np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    blocks = padded.reshape(*rows.shape[:-1], -1, _BLOCK)
    size = np.max(np.where(np.isfinite(blocks), np.abs(blocks), 0.0), axis=-1, keepdims=True)
    exponent = np.where(size > 0, np.frexp(size)[1] + 126, 0)
    step = np.ldexp(1.0, np.maximum(exponent, 0) - 133)
    near = np.clip(np.rint(blocks / step), -_MOST, _MOST) * step
    held = np.where(np.isfinite(blocks), near, blocks).reshape(padded.shape)
    return np.moveaxis(held[..., : rows.shape[-1]], -1, axis)


OPERATORS: Table = {
    "QuantizeLinear": quantize.OPERATORS["QuantizeLinear"],
    "DequantizeLinear": quantize.OPERATORS["DequantizeLinear"],
    "QLinearAdd": computes(_add),
    "QLinearMul": computes(_mul),
    "QLinearLeakyRelu": computes(_leaky_relu),
    "QLinearSigmoid": computes(_sigmoid),
    "QLinearSoftmax": computes(_softmax),
    "QLinearAveragePool": computes(_average_pool),
    "QLinearGlobalAveragePool": computes(_global_average_pool),
    "QLinearConcat": computes(_concat),
    "QGemm": computes(_gemm),
    "MatMulIntegerToFloat": computes(_integer_to_float),
    "DynamicQuantizeMatMul": computes(_dynamic_product),
    "MatMulNBits": computes(_few_bits),
}

OWN: Table = {"RoundToBlocks": computes(_round_to_blocks)}
