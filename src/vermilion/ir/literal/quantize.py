"""Conversions between number formats, and products of quantized numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, Typed, computes, moves
from vermilion.ir.literal.products import convolution, product, without_zero_point
from vermilion.ir.literal.rounding import (
    FLOAT8,
    WIDENED,
    holds_all_of,
    integer_range,
    is_float,
    rounded,
    rounded_to_float8,
    widened,
)

Array = NDArray[Any]

_E8M0 = ir.DataType.FLOAT8E8M0
_STORED = frozenset({ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT2, ir.DataType.UINT2})


def cast(
    array: Array, given: ir.DataType, wanted: ir.DataType, *, saturate: bool = True, up: str = "up"
) -> Typed:
    """Return the array, declared as `given`, in another type, as ONNX Cast says."""
    if wanted == ir.DataType.STRING:
        return Typed(_as_text(array, given), wanted)
    if array.dtype == object:
        array = np.array([_number(text) for text in array.reshape(-1)]).reshape(array.shape)
        return cast(array, ir.DataType.DOUBLE, wanted, saturate=saturate)
    if wanted in WIDENED:
        wide = array if array.dtype.kind in "iu" else widened(array).astype(np.float64)
        is_exact = holds_all_of(wanted, given)
        whole = wide.astype(np.float64)
        return Typed(whole if is_exact else rounded(whole, wanted), wanted)
    if wanted in FLOAT8:
        return Typed(rounded_to_float8(array.astype(np.float64), wanted, saturate=saturate), wanted)
    if wanted == _E8M0:
        return Typed(_power_of_two(array.astype(np.float64), saturate=saturate, up=up), wanted)
    if wanted == ir.DataType.BOOL:
        return Typed(array.astype(np.float64) != 0 if is_float(array) else array != 0, wanted)
    if wanted in _STORED or array.dtype.kind not in "iufb":
        return Typed(_as_whole(array, wanted), wanted)
    return Typed(array.astype(wanted.numpy()), wanted)


def _as_whole(array: Array, wanted: ir.DataType) -> Array:
    """Return numbers as whole ones whose higher bits are dropped."""
    whole = array.astype(np.float64 if is_float(array) else np.int64).astype(np.int64)
    low, high = integer_range(wanted)
    span = high - low + 1
    return ((whole - low) % span + low).astype(np.int64).astype(wanted.numpy())


def _as_text(array: Array, given: ir.DataType) -> Array:
    if array.dtype == object:
        return array
    if array.dtype.kind == "b":
        words = [str(int(value)) for value in array.reshape(-1)]
    elif is_float(array):
        kind = given.numpy() if given in WIDENED else np.dtype(np.float32)
        words = [str(kind.type(value)) for value in array.reshape(-1)]
    else:
        words = [str(int(value)) for value in array.reshape(-1)]
    return np.array(words, object).reshape(array.shape)


def _number(text: Any) -> float:
    return float(text.decode() if isinstance(text, bytes) else text)


def _power_of_two(x: Array, *, saturate: bool, up: str) -> Array:
    mantissa, exponent = np.frexp(np.abs(x))
    # x = mantissa · 2^exponent, the mantissa from ½: a power of two where it is exactly that.
    lower = exponent - 1
    is_power = mantissa == 0.5
    limit = {"up": 0.5, "down": 1.0, "nearest": 0.75}[up]
    raised = np.where(is_power, lower, np.where(mantissa >= limit, lower + 1, lower))
    if up == "down":
        raised = lower
    low, high = -127, 127
    is_out = (raised < low) | (raised > high) | ~np.isfinite(x) | (x == 0)
    inside = np.clip(np.where(np.isinf(x), high, np.where(x == 0, low, raised)), low, high)
    codes = np.ldexp(1.0, inside.astype(np.int32))
    lost = np.isnan(x) if saturate else is_out
    return np.where(lost, np.nan, codes).astype(_E8M0.numpy())


def _cast(call: Call) -> Any:
    return cast(
        call[0],
        call.type(0),
        ir.DataType(call.integer("to")),
        saturate=bool(call.integer("saturate", 1)),
        up=call.text("round_mode", "up"),
    )


def _cast_like(call: Call) -> Any:
    saturate = bool(call.integer("saturate", 1))
    return cast(call[0], call.type(0), call.type(1), saturate=saturate)


def _bit_cast(call: Call) -> Array:
    wanted = ir.DataType(call.integer("to"))
    if call.is_wide and call.type(0) in WIDENED:
        return np.asarray(rounded(call[0], call.type(0))).view(wanted.numpy())
    return np.ascontiguousarray(call[0]).view(wanted.numpy()).reshape(call[0].shape)


def laid_along(call: Call, parts: Array, shape: tuple[int, ...]) -> Array:
    """Return scales or zero points so that they fit the tensor: one, an axis of them, or blocks.

    Raises: ModelError where they fit none of these.
    """
    if parts.size == 1 and parts.ndim <= 1:
        return parts.reshape(())
    axis = call.axis(call.integer("axis", 1), len(shape))
    if parts.ndim == 1 and len(shape) >= 1 and not call.integer("block_size", 0):
        if parts.size != shape[axis]:
            raise call.error(f"{parts.size} scales for {shape[axis]} rows along axis {axis}")
        return parts.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    block = call.integer("block_size", 0)
    if block < 1 or parts.ndim != len(shape):
        raise call.error(f"scales of shape {parts.shape} do not fit a tensor of {shape}")
    return np.take(parts, np.arange(shape[axis]) // block, axis)


def quantized(
    x: Array,
    scale: Array,
    zero_point: Array | None,
    dtype: ir.DataType,
    precision: ir.DataType,
    *,
    saturate: bool = True,
) -> Array:
    """Return codes: the quotient in `precision`, rounded half to even, moved and saturated."""
    ratio = rounded(np.asarray(x / scale), precision).astype(np.float64)
    moved = 0.0 if zero_point is None else zero_point.astype(np.float64)
    if not dtype.is_integer():
        if dtype in FLOAT8:
            return rounded_to_float8(np.asarray(ratio + moved), dtype, saturate=saturate)
        return np.asarray(ratio + moved).astype(dtype.numpy())
    low, high = integer_range(dtype)
    codes = np.clip(np.nan_to_num(np.rint(ratio), nan=0.0) + moved, low, high)
    whole = codes.astype(np.int64)
    return whole.astype(dtype.numpy())


def _quantize_linear(call: Call) -> Typed:
    x = call[0].astype(np.float64)
    declared = ir.DataType(call.integer("output_dtype", 0))
    if call.has(2):
        dtype = call.type(2)
    else:
        dtype = ir.DataType.UINT8 if declared == ir.DataType.UNDEFINED else declared
    precision = _precision(call)
    scale = laid_along(call, widened(call[1]).astype(np.float64), x.shape)
    zero_point = laid_along(call, call[2], x.shape) if call.has(2) else None
    saturate = bool(call.integer("saturate", 1))
    return Typed(quantized(x, scale, zero_point, dtype, precision, saturate=saturate), dtype)


def _precision(call: Call) -> ir.DataType:
    """Return the type of the division: from version 23 on the standard says which it is.

    Before, it is float32 at least, as in ONNX Runtime: a quotient in float16 would be a tie often.
    """
    written = ir.DataType(call.integer("precision", 0))
    wanted = call.type(1) if written == ir.DataType.UNDEFINED else written
    is_small = call.version < 23 and wanted != ir.DataType.DOUBLE
    return ir.DataType.FLOAT if is_small or wanted not in WIDENED else wanted


def _dequantize_linear(call: Call) -> Typed:
    codes = call[0]
    scale = laid_along(call, widened(call[1]), codes.shape)
    zero_point = laid_along(call, call[2], codes.shape) if call.has(2) else None
    declared = ir.DataType(call.integer("output_dtype", 0))
    dtype = call.type(1) if declared == ir.DataType.UNDEFINED else declared
    if dtype not in WIDENED:
        dtype = ir.DataType.FLOAT
    return Typed(rounded(np.asarray(without_zero_point(codes, zero_point) * scale), dtype), dtype)


def _dynamic_quantize_linear(call: Call) -> tuple[Typed, ...]:
    return dynamically_quantized(call[0])


def dynamically_quantized(given: Array) -> tuple[Typed, ...]:
    """Return uint8 codes, their scale and their zero point, found from the numbers.

    Every step is in float32: the scale is a result, and the codes follow from it.
    """
    x = rounded(given, ir.DataType.FLOAT)
    zero = np.zeros((), np.float32)
    high = np.maximum(zero, np.max(x, initial=0.0))
    low = np.minimum(zero, np.min(x, initial=0.0))
    scale = np.asarray((high - low) / np.float32(255), np.float32)
    if scale == 0:
        scale = np.ones((), np.float32)
    point = np.clip(np.rint(zero - low / scale), 0, 255).astype(np.uint8)
    codes = quantized(
        x.astype(np.float64), scale.astype(np.float64), point, ir.DataType.UINT8, ir.DataType.FLOAT
    )
    return (
        Typed(codes, ir.DataType.UINT8),
        Typed(scale, ir.DataType.FLOAT),
        Typed(np.asarray(point), ir.DataType.UINT8),
    )


def requantized(total: Array, scale: Array, zero_point: Array) -> Array:
    """Return exact sums in the type of `zero_point`: times a float32 scale, in float32."""
    moved = total.astype(np.float32) * scale.astype(np.float32)
    dtype = ir.DataType.from_numpy(zero_point.dtype)
    one = np.ones((), np.float64)
    return quantized(moved.astype(np.float64), one, zero_point, dtype, ir.DataType.FLOAT)


def _whole_scale(x: Array, weights: Array, y: Array) -> Array:
    ratio = np.asarray(x.astype(np.float32) * weights.astype(np.float32)) / y.astype(np.float32)
    return np.asarray(ratio, np.float32)


def _qlinear_conv(call: Call) -> Typed:
    x = without_zero_point(call[0], call.get(2))
    weights = without_zero_point(call[3], call.get(5), axis=0)
    total = convolution(call, x, weights, None)
    lie_along = (-1,) + (1,) * (x.ndim - 2)
    if call.has(8):
        total = total + call[8].astype(np.float64).reshape(lie_along)
    w_scale = call[4].reshape(lie_along) if call[4].size > 1 else call[4].reshape(())
    scale = _whole_scale(call[1].reshape(()), w_scale, call[6].reshape(()))
    return Typed(requantized(total, scale, call[7].reshape(())), call.type(7))


def _lies(part: Array, rank: int, *, is_left: bool) -> Array:
    """Return a vector of scales or zero points so that it lies along the rows or the columns."""
    if part.size == 1:
        return part.reshape(())
    return part.reshape(-1, 1) if is_left and part.ndim == 1 and rank > 1 else part


def _qlinear_matmul(call: Call) -> Typed:
    a, b = call[0], call[3]
    left = a.astype(np.float64) - _lies(call[2], a.ndim, is_left=True)
    right = b.astype(np.float64) - _lies(call[5], b.ndim, is_left=False)
    scale = _whole_scale(
        _lies(call[1], a.ndim, is_left=True), _lies(call[4], b.ndim, is_left=False), call[6]
    )
    if call[6].size == 1:
        scale = scale.reshape(scale.shape[-2:])
    return Typed(requantized(product(left, right), scale, call[7].reshape(())), call.type(7))


OPERATORS: Table = {
    "Cast": moves(_cast),
    "CastLike": moves(_cast_like),
    "BitCast": moves(_bit_cast),
    "QuantizeLinear": moves(_quantize_linear),
    "DequantizeLinear": moves(_dequantize_linear),
    "DynamicQuantizeLinear": computes(_dynamic_quantize_linear),
    "QLinearConv": computes(_qlinear_conv),
    "QLinearMatMul": computes(_qlinear_matmul),
}
